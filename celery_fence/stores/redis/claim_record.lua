-- CLAIM RECORD: for work that is begun under a lease its execution has already; what an acquire does besides its grant.
-- Safe to send again.
--
-- KEYS  1  fence:{bNN}:record:<idempotency key>  hash, the record; lives for its retention
--       2  fence:{bNN}:records  sorted set, when each record of the bucket expires; goes when empty
-- ARGV  1  owner of the lease
--       2  its token
--       3  the lock key
--       4  idempotency key
--       5  how long its record is kept, ms
--       6  facts about the owner, JSON
-- ANSWER  {'claimed'}
--         {'already_done', lock key, owner, ...}  the work was done before (see record_answer)
--         {'claimed_elsewhere', lock key, owner, ...}  another lock key's lease guards the work, or a newer one on the
--                                                      same key (see record_answer)

local record, records = KEYS[1], KEYS[2]
local known, now_us = read_record(record), server_time_us()
if known and known.done then return record_answer('already_done', record, known, true) end
-- A newer token on the same key: its lease is over, although it hasn't noticed yet, and another run does the work.
local newer = known and known.token > tonumber(ARGV[2])
if known and (known.key ~= ARGV[3] or newer) then return record_answer('claimed_elsewhere', record, known, false) end
local mark = {key = ARGV[3], owner = ARGV[1], token = tonumber(ARGV[2]), claimed = now_us, facts = ARGV[6]}
write_record(record, records, ARGV[4], mark, now_us, ARGV[5])
return {'claimed'}
