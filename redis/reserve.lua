-- Strict mode: takes the first instance of a list whose limit of open requests holds, over all routers, in one step.
-- KEYS  1 routers   2… open requests of each candidate, the best first
-- ARGV  1 router   2 its lease, ms   3… limit of each candidate, -1 for none
-- Returns the place of the one that was taken in the list, 0 if no limit holds.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_ms = tonumber(ARGV[2])

for i = 2, #KEYS do
  local open = 0
  local counts = redis.call('HGETALL', KEYS[i])
  for j = 1, #counts, 2 do
    local leased_until_ms = redis.call('ZSCORE', KEYS[1], counts[j])
    if counts[j] == ARGV[1] or (leased_until_ms and tonumber(leased_until_ms) >= now_ms) then
      open = open + tonumber(counts[j + 1])
    else
      redis.call('HDEL', KEYS[i], counts[j])  -- that router died, or will state what it has when it thaws
    end
  end
  local limit = tonumber(ARGV[i + 1])
  if limit < 0 or open < limit then
    redis.call('HINCRBY', KEYS[i], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[i], 4 * lease_ms)
    redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + lease_ms), ARGV[1])
    redis.call('PEXPIRE', KEYS[1], 4 * lease_ms)
    return i - 1
  end
end
return 0
