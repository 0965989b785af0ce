-- Strict mode: states how many requests a router has open on some instances, and renews its lease.
-- KEYS  1 routers   2… open requests of each instance
-- ARGV  1 router   2 its lease, ms   3… number of requests on each instance
-- Returns the number of instances.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_ms = tonumber(ARGV[2])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms))
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + lease_ms), ARGV[1])
redis.call('PEXPIRE', KEYS[1], 4 * lease_ms)
for i = 2, #KEYS do
  if ARGV[i + 1] == '0' then
    redis.call('HDEL', KEYS[i], ARGV[1])
  else
    redis.call('HSET', KEYS[i], ARGV[1], ARGV[i + 1])
    redis.call('PEXPIRE', KEYS[i], 4 * lease_ms)
  end
end
return #KEYS - 1
