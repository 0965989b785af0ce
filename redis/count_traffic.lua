-- Adds what a router has counted of its requests to the totals of the fleet, and notes how many it holds now.
-- A batch that comes again, because its answer was lost with the connection, is not added again.
-- KEYS  1 totals, by model   2 routers
-- ARGV  1 router   2 number of the batch, rising   3 what it holds, as JSON   4… two of each model: its name, and the
--       numbers to add with spaces between them
-- Returns 1, or 0 if the batch had come already; what the router holds is noted in any case.
local ROUTER_MS = 3600 * 1000  -- after that, a batch that was cut off does not come again any more
local MODEL_MS, UNSERVED_MS = 86400 * 1000, 3600 * 1000
local MOST_MODELS = 1000
local LIFE_MS = 7 * 86400 * 1000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now = string.format('%.0f', now_ms)

local before
local routers = redis.call('HGETALL', KEYS[2])
for i = 1, #routers, 2 do
  local batch, told_ms = string.match(routers[i + 1], '^(%d+) (%d+) ')
  if routers[i] == ARGV[1] then
    before = tonumber(batch)
  elseif not told_ms or now_ms - tonumber(told_ms) > ROUTER_MS then
    redis.call('HDEL', KEYS[2], routers[i])
  end
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. now .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[2], LIFE_MS)
if before and before >= tonumber(ARGV[2]) then return 0 end

local function numbers(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[#found + 1] = tonumber(word) or 0 end
  return found
end

-- A total is when something was added last, then the numbers. Names that were only asked for in vain are anybody's
-- invention: they go sooner. One router's word on a model, the first two numbers, are all its requests and those refused.
local held, models = {}, 0
local totals = redis.call('HGETALL', KEYS[1])
for i = 1, #totals, 2 do
  local sums = numbers(totals[i + 1])
  local life_ms = sums[2] == sums[3] and UNSERVED_MS or MODEL_MS
  if now_ms - (sums[1] or 0) > life_ms then
    redis.call('HDEL', KEYS[1], totals[i])
  else
    held[totals[i]], models = sums, models + 1
  end
end
for i = 4, #ARGV, 2 do
  local sums, added = held[ARGV[i]], numbers(ARGV[i + 1])
  if sums or models < MOST_MODELS then
    if not sums then sums, models = {}, models + 1 end
    local words = {now}
    for j = 1, #added do words[j + 1] = string.format('%.0f', (sums[j + 1] or 0) + added[j]) end
    redis.call('HSET', KEYS[1], ARGV[i], table.concat(words, ' '))
  end
end
redis.call('PEXPIRE', KEYS[1], LIFE_MS)
return 1
