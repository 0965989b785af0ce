-- Reads the whole registry in one step; writes nothing.
-- KEYS  1 ids   2 orders   3 seq
-- ARGV  1 what the records' keys begin with
-- Returns { seq or nil, { id, record, ms left to live or -1, ms since it was published, … }, { id, lifecycle, … } }.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local records = {}
local ids = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #ids, 2 do
  local key = ARGV[1] .. ids[i]
  local record = redis.call('GET', key)
  if record then
    local published_ms = tonumber(ids[i + 1])  -- 0 when written by hand
    local age_ms = published_ms > 0 and math.max(0, now_ms - published_ms) or 0
    table.insert(records, ids[i])
    table.insert(records, record)
    table.insert(records, redis.call('PTTL', key))
    table.insert(records, age_ms)
  end
end
return { redis.call('GET', KEYS[3]), records, redis.call('HGETALL', KEYS[2]) }
