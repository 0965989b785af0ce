-- Says that an incarnation of an instance is the one that lives: deletes the log of the one before, keeps its own alive.
-- KEYS  1 key of the incarnation that lives   2 its stream   3 its snapshot
-- ARGV  1 incarnation, id@start   2 what streams begin with   3 what snapshots begin with   4 time to live, ms
-- Returns the id of the stream's last entry ('0-0': none), and 1 if there is a snapshot, else 0.
local before = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if before and before ~= ARGV[1] then
  redis.call('DEL', ARGV[2] .. before, ARGV[3] .. before)
end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {last[1] and last[1][1] or '0-0', redis.call('PEXPIRE', KEYS[3], ARGV[4])}
