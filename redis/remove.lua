-- Deletes an instance with its order, and tells every router.
-- KEYS  1 record of the instance   2 ids   3 orders   4 seq
-- ARGV  1 events channel   2 instance id
-- Returns 1, or 0 if there was no such instance; then nothing is told.
local found = redis.call('DEL', KEYS[1]) + redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
if found == 0 then return 0 end

-- A counter begins at the server's time in µs, so that one that was lost never comes back to numbers seen before.
if redis.call('EXISTS', KEYS[4]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[4], string.format('%.0f', time[1] * 1000000 + time[2]), 'PX', 604800000)  -- a week
end
local seq = string.format('%.0f', redis.call('INCR', KEYS[4]))

redis.call('PUBLISH', ARGV[1], '{"event":"removed","seq":' .. seq .. ',"id":' .. cjson.encode(ARGV[2]) .. '}')
return 1
