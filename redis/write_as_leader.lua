-- Writes what only the leader may: a leader that was asleep while another took its place writes nothing.
-- KEYS  1 who leads   2 what is written
-- ARGV  1 fencing number of the one who writes   2 data   3 time to live, ms
-- Returns 1, or 0 if somebody else leads by now, or nobody; then nothing is written.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local fence, until_ms
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  if flat[i] == 'fence' then fence = flat[i + 1] end
  if flat[i] == 'until_ms' then until_ms = tonumber(flat[i + 1]) end
end
if fence ~= ARGV[1] or not until_ms or until_ms <= now_ms then return 0 end
redis.call('HSET', KEYS[2], 'data', ARGV[2], 'at_ms', string.format('%.0f', now_ms))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
