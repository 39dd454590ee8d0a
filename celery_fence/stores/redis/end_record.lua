-- END RECORD: complete the record of a body that returned, or drop its claim, while the lease stays. Only of a claim
-- that nobody has taken over. Safe to send again.
--
-- KEYS  1  fence:{bNN}:record:<idempotency key>  hash, the record; lives for its retention
--       2  fence:{bNN}:records  sorted set, when each record of the bucket expires; goes when empty
-- ARGV  1  owner of the lease
--       2  its token
--       3  the lock key
--       4  idempotency key
--       5  how long its record is kept, ms
--       6  facts about the owner, JSON
--       7  '1': the body returned
--       8  its value; not given where none is kept
-- ANSWER  {'ended'}

local record, records, value = KEYS[1], KEYS[2], ARGV[8]
local known, now_us = read_record(record), server_time_us()
if known and (known.done or known.owner ~= ARGV[1]) then return {'ended'} end
if ARGV[7] ~= '1' then
  redis.call('DEL', record)
  ask_index('ZREM', records, ARGV[4])
  return {'ended'}
end
local mark = known or {key = ARGV[3], owner = ARGV[1], token = tonumber(ARGV[2]), claimed = now_us, facts = ARGV[6]}
if value then
  write_record(record, records, ARGV[4], mark, now_us, ARGV[5], 'done', whole(now_us), 'value', value)
else
  write_record(record, records, ARGV[4], mark, now_us, ARGV[5], 'done', whole(now_us))
end
return {'ended'}
