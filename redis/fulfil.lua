-- Takes an intent back, since its model is served: the first router to say so learns how long it stood.
-- KEYS  1 the model's intent   2 all intents
-- ARGV  1 model
-- Returns for how long it was wanted while no instance was starting with it or since, ms; -1 if that never was.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local age_ms = -1
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  if flat[i] == 'cold_ms' then
    age_ms = now_ms - tonumber(flat[i + 1])
  end
  redis.call('HDEL', KEYS[1], flat[i])  -- a router may not delete keys: records of instances are some
end
redis.call('ZADD', KEYS[2], '0', ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '0')
return age_ms
