-- Writes down that a model is wanted which nobody can serve, for whoever may load it.
-- KEYS  1 the model's intent   2 all intents
-- ARGV  1 model   2 router   3 requests since the router's last word   4 of them held there now
--       5 time to live, ms   6 for how long the caller means to tell others of it, ms; 0: it does not
--       7 1 if no instance is starting with the model, else 0
-- Returns the intent's age in ms, its requests, and 1 if the caller is to tell others of it (no other router is), else 0.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now = string.format('%.0f', now_ms)

local held = {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  held[flat[i]] = flat[i + 1]
end
if ARGV[3] == '0' and not held['since_ms'] then
  return {0, 0, 0}  -- only to say who waits; the model was served meanwhile
end
local since_ms = tonumber(held['since_ms'] or now)
local requests = redis.call('HINCRBY', KEYS[1], 'requests', ARGV[3])
redis.call('HSET', KEYS[1], 'since_ms', string.format('%.0f', since_ms), 'latest_ms', now)
redis.call('HSET', KEYS[1], 'waiting:' .. ARGV[2], ARGV[4] .. ' ' .. now)

if ARGV[7] == '1' and not held['cold_ms'] then
  redis.call('HSET', KEYS[1], 'cold_ms', now)
end

local tell = 0
if tonumber(ARGV[6]) > 0 and tonumber(held['told_until_ms'] or '0') <= now_ms then
  redis.call('HSET', KEYS[1], 'told_until_ms', string.format('%.0f', now_ms + ARGV[6]))
  tell = 1
end
local life_ms = math.max(tonumber(ARGV[5]), redis.call('PTTL', KEYS[1]))  -- an intent's end only moves on
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life_ms))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + life_ms), ARGV[1])
redis.call('PEXPIRE', KEYS[2], 7 * 86400 * 1000)
return {now_ms - since_ms, requests, tell}
