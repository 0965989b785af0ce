-- Gives an operator's order for an instance, or takes it back, and tells every router.
-- KEYS  1 record of the instance   2 orders   3 seq   4 who leads; only of an autoscaler's order
-- ARGV  1 events channel   2 instance id   3 lifecycle to count as, "" to take the order back
--       4 fencing number of the autoscaler that gives it
-- Returns 1, 0 if there is no such instance (and no order to take back), or -1 if another autoscaler leads, or none;
-- with 0 and -1 nothing is written.
if KEYS[4] then
  local time = redis.call('TIME')
  local held = {}
  local flat = redis.call('HGETALL', KEYS[4])
  for i = 1, #flat, 2 do held[flat[i]] = flat[i + 1] end
  local left_ms = (tonumber(held.until_ms) or 0) - time[1] * 1000 - math.floor(time[2] / 1000)
  if held.fence ~= ARGV[4] or left_ms <= 0 then return -1 end
end
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then
  return 0
end
local lifecycle = 'null'
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
else
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  if redis.call('PTTL', KEYS[2]) < 0 then redis.call('PEXPIRE', KEYS[2], 604800000) end  -- a week, renewed by publishes
  lifecycle = cjson.encode(ARGV[3])
end

-- A counter begins at the server's time in µs, so that one that was lost never comes back to numbers seen before.
if redis.call('EXISTS', KEYS[3]) == 0 then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[3], string.format('%.0f', time[1] * 1000000 + time[2]), 'PX', 604800000)  -- a week
end
local seq = string.format('%.0f', redis.call('INCR', KEYS[3]))

redis.call('PUBLISH', ARGV[1], '{"event":"ordered","seq":' .. seq .. ',"id":' .. cjson.encode(ARGV[2]) ..
  ',"lifecycle":' .. lifecycle .. '}')
return 1
