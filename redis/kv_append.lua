-- Appends one delta to an instance's KV log and keeps the log alive.
-- KEYS  1 stream
-- ARGV  1 payload   2 about how many entries to keep   3 time to live, ms
-- Returns the entry's id and that of the one before it ('0-0': none). Each entry names the one before it, so that a
-- reader notices whatever it did not see, and its writer whatever the server no longer has.
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local before = last[1] and last[1][1] or '0-0'
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'd', ARGV[1], 'p', before)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {id, before}
