-- ACQUIRE: take the key if nobody has it, and issue its token; not for a delivery that has ended, nor for work that
-- its idempotency record says is done. The grant claims that record: also one whose run died, for this token is higher.
-- Safe to send again: the same owner gets the same grant, with the full TTL; and one that was told of a miss, and
-- decided for good what to do about it, gets the same miss again, whatever has become of the key.
--
-- KEYS  1  fence:{bNN}:lease:<key>  hash, the lease; lives for its TTL and its lost delay
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
--       3  fence:{bNN}:expiries     sorted set, when each key of the bucket opens; goes when empty
--       4  fence:{bNN}:done:<delivery>:<key>  hash, how the delivery ended; lives for its retention. Not given for
--                                             an asker without a delivery
--       then, not given for an asker without an idempotency key:
--          fence:{bNN}:record:<idempotency key>  hash, its record; lives for its retention
--          fence:{bNN}:records  sorted set, when each record of that bucket expires; goes when empty
-- ARGV  1  owner
--       2  TTL, ms
--       3  retention of the counter, ms
--       4  the business key, as it stands in the index
--       5  facts about the owner, JSON
--       6  lost delay, ms
--       7  delivery, or ''
--       8  message, or ''
--       9  what the asker will do for good if the key is held, or ''
--      10  how long that is remembered, ms
--      11  idempotency key, or ''
--      12  how long its record is kept, ms
-- ANSWER  {'granted', token, since in us}   the key is the owner's
--         {'delivery_ended', how, noted, age in us, value, holder}  this delivery has ended: noted is '1' or false,
--                                           the value false where none is kept, the holder (see holder_answer) where
--                                           the end was a decision on a miss, else false
--         {'held', '', owner, token, ...}   somebody else has it (see holder_answer)
--         {'ended'}                         this owner has released the key already
--         {'already_done', lock key, owner, ...}  the work was done before (see record_answer), whoever has the key
--         {'claimed_elsewhere', lock key, owner, ...}  another lock key's lease guards the work (see record_answer)

local lease, counter, index = KEYS[1], KEYS[2], KEYS[3]
local owner, retention_ms, key = ARGV[1], ARGV[3], ARGV[4]
local claim = {
  owner = owner, ttl_ms = tonumber(ARGV[2]), facts = ARGV[5], lost_delay_ms = tonumber(ARGV[6]),
  delivery = ARGV[7], message = ARGV[8],
}
local if_held, remembered_ms = ARGV[9], ARGV[10]
local marker = claim.delivery ~= '' and KEYS[4] or nil
local record_key, kept_ms = ARGV[11], ARGV[12]
local record, records
if record_key ~= '' then record, records = KEYS[#KEYS - 1], KEYS[#KEYS] end

local now_us = server_time_us()
local last = read_counter(counter)
local held = read_lease(lease)
local mine = held and held.owner == owner and not held.closed
local known = read_record(record)
if not mine then
  local done = read_marker(marker)
  if done and done.holder and done.by == owner then return done.holder end
  if done then
    -- The clock was stepped back: counted from now on, or the end would stay young for as long as the step.
    if done.at > now_us then redis.call('HSET', marker, 'at', whole(now_us)) end
    return {'delivery_ended', done.how, done.noted, whole(math.max(now_us - done.at, 0)), done.value, done.holder}
  end
  if last.released == owner then return {'ended'} end
  if known and known.done then return record_answer('already_done', record, known, true) end
  if known and known.key ~= key then return record_answer('claimed_elsewhere', record, known, false) end
end

if held and not mine then
  if held.too_long_ms then
    -- Its holder renews it in time, or is dead: then the key opens after a TTL, not after the step of the clock as well.
    redis.call('PEXPIRE', lease, whole(held.too_long_ms))
    note_expiry(index, key, now_us, held.too_long_ms)
    held = read_lease(lease)
  end
  if held.left == -1 then
    -- Made by hand: from now on the list shows it too.
    ask_index('ZADD', index, '+inf', key)
    redis.call('PEXPIRE', index, retention_ms)
  end
  local answer = holder_answer('held', '', held)
  -- A copy or a predecessor of the asker's own message is nothing to decide about.
  if marker and if_held ~= '' and (claim.message == '' or claim.message ~= held.message) then
    write_marker(marker, if_held, owner, now_us, remembered_ms, 'holder', cjson.encode(answer))
  end
  return answer
end

local token, since = math.max(last.token + 1, now_us), now_us
-- One whose token isn't ours any more gets a new one.
if mine and held.token > 0 then
  token, since = held.token, held.since
end
-- First what needs memory: a server that is full refuses it, as long as nothing has been written.
note_expiry(index, key, now_us, claim.ttl_ms + claim.lost_delay_ms)
redis.call('ZREMRANGEBYSCORE', index, '-inf', whole(math.floor(now_us / 1000)))
redis.call('HSET', counter, 'token', whole(math.max(token, last.token)))
redis.call('PEXPIRE', counter, retention_ms)
if record and not (known and known.done) then
  local mark = {key = key, owner = owner, token = token, claimed = since, facts = claim.facts}
  write_record(record, records, record_key, mark, now_us, kept_ms)
end
-- Last what closes the key: where a right is missing, no lease is left that nobody has heard of.
if mine then redis.call('DEL', lease) end
write_lease(lease, claim, whole(token), whole(since))
return {'granted', whole(token), whole(since)}
