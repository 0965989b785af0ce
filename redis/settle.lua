-- Limits: mends charges whose requests have ended. The formula is that of `extproc.core.limits.gcra.settled`.
-- A batch that comes again, because its answer was lost with the connection, does nothing.
-- KEYS  1 the last batch of this router   2… one bucket of each charge; the same may come again
-- ARGV  1 number of the batch, rising   2… two of each: by how many µs the charge was too little (negative: too much),
--       and when it was made, in µs
-- Returns the time in µs.
local REMEMBERED_MS = 60000
local LONGEST_US = 6e15  -- what is beyond it, no double keeps to the microsecond
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]

local last = redis.call('HGETALL', KEYS[1])
if last[2] and tonumber(last[2]) >= tonumber(ARGV[1]) then return now_us end
redis.call('HSET', KEYS[1], 'batch', ARGV[1])
redis.call('PEXPIRE', KEYS[1], REMEMBERED_MS)

for i = 2, #KEYS do
  local change_us, charged_at_us = tonumber(ARGV[2 * i - 2]), tonumber(ARGV[2 * i - 1])
  local told = {}
  local fields = redis.call('HGETALL', KEYS[i])
  for j = 1, #fields, 2 do told[fields[j]] = tonumber(fields[j + 1]) end
  local empty_us, since_us = told.empty or 0, told.since or now_us
  if empty_us <= now_us and change_us > 0 then empty_us, since_us = now_us, now_us end
  if change_us > 0 or (empty_us > now_us and charged_at_us >= since_us) then
    empty_us = math.min(empty_us + change_us, now_us + LONGEST_US)
    redis.call('HSET', KEYS[i], 'empty', string.format('%.17g', empty_us), 'since', string.format('%.17g', since_us))
    redis.call('PEXPIRE', KEYS[i], math.max(0, math.ceil((empty_us - now_us) / 1000)) + 1000)
  end
end
return now_us
