-- Limits: charges one request to all of its buckets, or to none if one of them has no room. The formula is that of
-- `extproc.core.limits.gcra`; the clock is this server's, so that those of the routers do not matter.
-- KEYS  1 routers   2… buckets
-- ARGV  1 router   2 its lease, ms   3… two of each bucket: what the request costs and what the bucket holds, both µs;
--       or -1 and how many requests may be under way
-- Returns 1 or 0 for charged or not, the time in µs, and two of each bucket: how full it is now, in µs (of requests
-- under way, their number), and how long to wait until there is room, in µs; -1 if nobody can tell.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local lease_ms = tonumber(ARGV[2])

local function under_way(key)
  local open = 0
  local counts = redis.call('HGETALL', key)
  for j = 1, #counts, 2 do
    local leased_until_ms = redis.call('ZSCORE', KEYS[1], counts[j])
    if counts[j] == ARGV[1] or (leased_until_ms and tonumber(leased_until_ms) >= now_ms) then
      open = open + tonumber(counts[j + 1])
    else
      redis.call('HDEL', key, counts[j])  -- that router died, or will state what it has when it thaws
    end
  end
  return open
end

local function level(key)
  local told = {}
  local fields = redis.call('HGETALL', key)
  for j = 1, #fields, 2 do told[fields[j]] = tonumber(fields[j + 1]) end
  local empty_us = told.empty or 0
  if empty_us > now_us then return empty_us, told.since or now_us end
  return now_us, now_us
end

local charged = 1
local found = {}
for i = 2, #KEYS do
  local cost, capacity = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local state = {wait = 0}
  if cost < 0 then
    state.open = under_way(KEYS[i])
    if state.open >= capacity then state.wait = -1 end
  else
    state.empty, state.since = level(KEYS[i])
    state.wait = math.max(0, math.ceil(state.empty - now_us + math.min(cost, capacity) - capacity))
  end
  if state.wait ~= 0 then charged = 0 end
  found[i] = state
end

local reply = {charged, now_us}
for i = 2, #KEYS do
  local state = found[i]
  if charged == 1 and state.open then
    state.open = state.open + 1
    redis.call('HINCRBY', KEYS[i], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[i], 4 * lease_ms)
    redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + lease_ms), ARGV[1])
    redis.call('PEXPIRE', KEYS[1], 4 * lease_ms)
  elseif charged == 1 then
    state.empty = state.empty + tonumber(ARGV[2 * i - 1])
    redis.call('HSET', KEYS[i], 'empty', string.format('%.17g', state.empty), 'since',
      string.format('%.17g', state.since))
    redis.call('PEXPIRE', KEYS[i], math.ceil((state.empty - now_us) / 1000) + 1000)
  end
  reply[#reply + 1] = state.open or math.ceil(state.empty - now_us)
  reply[#reply + 1] = state.wait
end
return reply
