-- Publishes one instance: keeps its record alive and tells every router, in one step.
-- KEYS  1 record of the instance   2 ids   3 seq   4 orders
-- ARGV  1 events channel   2 instance id   3 record, an Instance as JSON   4 time to live, ms
-- Returns the event's sequence number.
local DAY_MS = 86400000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms), ARGV[2])

-- Ids whose record ran out are swept up here, a few at a time and the longest silent first. An order outlives its
-- instance by a day: a drained instance whose agent was away stays drained, and names that never come back go.
local prefix = string.sub(KEYS[1], 1, #KEYS[1] - #ARGV[2])
local function sweep(ids, with_order)
  for _, id in ipairs(ids) do
    if redis.call('EXISTS', prefix .. id) == 0 and (with_order or redis.call('HEXISTS', KEYS[4], id) == 0) then
      redis.call('ZREM', KEYS[2], id)
      if with_order then redis.call('HDEL', KEYS[4], id) end
    end
  end
end
sweep(redis.call('ZRANGE', KEYS[2], 0, 3), false)
local long_ago_ms = string.format('%.0f', now_ms - DAY_MS)
sweep(redis.call('ZRANGEBYSCORE', KEYS[2], 1, long_ago_ms, 'LIMIT', 0, 4), true)

-- A counter begins at the server's time in µs, so that one that was lost never comes back to numbers seen before.
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], string.format('%.0f', time[1] * 1000000 + time[2]))
end
local seq = string.format('%.0f', redis.call('INCR', KEYS[3]))
for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], 7 * DAY_MS) end  -- a fleet that is gone leaves nothing behind

redis.call('PUBLISH', ARGV[1], '{"event":"published","seq":' .. seq .. ',"ttl_ms":' .. ARGV[4] ..
  ',"instance":' .. ARGV[3] .. '}')
return seq
