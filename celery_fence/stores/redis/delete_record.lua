-- DELETE RECORD: forget what is known of an idempotency key.
--
-- KEYS  1  fence:{bNN}:record:<idempotency key>  hash, its record; deleted
--       2  fence:{bNN}:records  sorted set, when each record of the bucket expires; goes when empty
-- ARGV  1  '1': only a claim of the owner of ARGV 2; '0': whatever it is
--       2  owner
--       3  the idempotency key, as it stands in the index
-- ANSWER  {'record', lock key, owner, ...}  what was known, without its value (see record_answer); with ARGV 1 it stays
--                                           if it is done, or another owner's
--         {'none'}                          nothing was

local record, index = KEYS[1], KEYS[2]
local known = read_record(record)
local answer = known and record_answer('record', record, known, false) or {'none'}
if ARGV[1] == '1' and known and (known.done or known.owner ~= ARGV[2]) then return answer end
redis.call('DEL', record)
ask_index('ZREM', index, ARGV[3])
return answer
