-- Leads a fleet, or goes on leading it: one at a time, by this server's clock alone.
-- KEYS  1 who leads
-- ARGV  1 name, another for every start   2 lease, ms; 0: the one who leads gives it up
--       3 what people are told of whoever leads
-- Returns { 1 or 0 for whether the caller leads now, its fencing number or that of who leads, who leads,
-- what is told of it, ms left }. The number rises with each change, also where a leader comes back too late for its own lease.
local WEEK_MS = 604800000
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_ms = tonumber(ARGV[2])

local held = {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do held[flat[i]] = flat[i + 1] end
local left_ms = (tonumber(held.until_ms) or 0) - now_ms
local longest_ms = tonumber(held.lease_ms) or 0
if left_ms > longest_ms then  -- this server's clock has been set back: the lease must not last until it is there again
  left_ms = longest_ms
  redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now_ms + left_ms))
end

if left_ms > 0 and held.name ~= ARGV[1] then
  return {0, tonumber(held.fence), held.name, held.about or '', left_ms}
end
if lease_ms == 0 then
  if left_ms > 0 then redis.call('HSET', KEYS[1], 'until_ms', '0') end
  return {0, tonumber(held.fence or '0'), '', '', 0}
end
local fence = tonumber(held.fence)
if left_ms <= 0 or not fence then
  -- Not less than the time in µs, so that a number that was lost never comes back to one seen before.
  fence = math.max((fence or 0) + 1, time[1] * 1000000 + time[2])
end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'about', ARGV[3], 'fence', string.format('%.0f', fence), 'lease_ms',
  ARGV[2], 'until_ms', string.format('%.0f', now_ms + lease_ms))
redis.call('PEXPIRE', KEYS[1], WEEK_MS)
return {1, fence, ARGV[1], ARGV[3], lease_ms}
