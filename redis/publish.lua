-- Publishes one instance: keeps its record alive and tells every router, in one step.
-- KEYS  1 record of the instance   2 ids   3 seq
-- ARGV  1 events channel   2 instance id   3 record, an Instance as JSON   4 time to live, ms
-- Returns the event's sequence number.
local time = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), ARGV[2])

-- Ids whose record ran out are swept up here, a few at a time and the longest silent first.
local prefix = string.sub(KEYS[1], 1, #KEYS[1] - #ARGV[2])
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, 3)) do
  if redis.call('EXISTS', prefix .. id) == 0 then redis.call('ZREM', KEYS[2], id) end
end

-- A counter begins at the server's time in µs, so that one that was lost never comes back to numbers seen before.
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local seq = string.format('%.0f', redis.call('INCR', KEYS[3]))

redis.call('PUBLISH', ARGV[1], '{"event":"published","seq":' .. seq .. ',"ttl_ms":' .. ARGV[4] ..
  ',"instance":' .. ARGV[3] .. '}')
return seq
