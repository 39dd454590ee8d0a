-- RELEASE: free the key if it is still the owner's, and remember who released it and how its delivery ended.
-- Safe to send again: the same owner gets the same answer. A lease that vanished or expired without a newer
-- token counts as the owner's: nobody has been let in since; so does one in whose place an older one came back (data of
-- an earlier moment), and that goes. An owner that doesn't know its token, for it was
-- interrupted or killed as it asked, may still be granted the key by a question that is under way: on a free key its
-- release is remembered all the same, and takes up a token as that grant would have: who released before it is no
-- longer known then, and mustn't be put back by a late renewal. The end of a run whose lease is gone is remembered too,
-- so that its body isn't run again; but not while a copy of the same delivery holds the key, for then the copy's end
-- is the one that counts. The first end stands; but the key's own holder may bring another one while the epilogue of
-- the first isn't complete.
-- The idempotency record of a body that returned is completed, in the same step: by the key's own holder, or by one
-- that lost the key as long as nobody has taken its claim over. Any other end drops the claim.
--
-- KEYS  1  fence:{bNN}:lease:<key>  hash, the lease; deleted
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
--       3  fence:{bNN}:expiries     sorted set, when each key of the bucket opens; goes when empty
--       4  fence:{bNN}:done:<delivery>:<key>  hash, how the delivery ended; lives for its retention. Not given for
--                                             a run without a delivery
--       then, not given for a run without an idempotency key:
--          fence:{bNN}:record:<idempotency key>  hash, its record; lives for its retention
--          fence:{bNN}:records  sorted set, when each record of that bucket expires; goes when empty
-- ARGV  1  owner
--       2  token of the grant, 0 when the asker doesn't know it
--       3  retention of the counter, ms
--       4  the business key, as it stands in the index
--       5  delivery, or ''
--       6  how the delivery ended, or '' to remember nothing
--       7  how long that is remembered, ms
--       8  idempotency key, or ''
--       9  how long its record is kept, ms
--      10  facts about the owner, JSON, or '' for a run without an idempotency key
--      11  which values follow, a letter for each: 'v' the delivery's, 'r' the record's
--      then these values, in this order
-- ANSWER  {'released', ended}               the key is free, by this owner's release. ended is 1 when somebody else has
--                                           ended the delivery, and that end stands, else 0
--         {'gone', reason, ended}           'force_released' or 'superseded'; the key wasn't touched
--         {'gone', 'taken', ended, holder}  somebody else has it (see holder_answer); the key wasn't touched

local lease, counter, index = KEYS[1], KEYS[2], KEYS[3]
local owner, token, retention_ms, key = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local delivery, how, remembered_ms = ARGV[5], ARGV[6], ARGV[7]
local marker = delivery ~= '' and KEYS[4] or nil
local record_key, kept_ms, facts = ARGV[8], ARGV[9], ARGV[10]
local record, records
if record_key ~= '' then record, records = KEYS[#KEYS - 1], KEYS[#KEYS] end
local given = {}
for number = 1, #ARGV[11] do given[string.sub(ARGV[11], number, number)] = ARGV[11 + number] end
local value, result = given.v, given.r

local now_us = server_time_us()
local last = read_counter(counter)
local held = read_lease(lease)
local mine = held and held.owner == owner
local again = last.released == owner
local unheard = not held and token == 0
local reason = not (again or mine or unheard) and why_gone(held, last, owner, token) or nil
-- One that is there all the same is what a release left that failed halfway, for a missing right.
local rightful = not reason and (mine or not again)

if rightful then
  local newest = unheard and math.max(last.token + 1, now_us) or math.max(last.token, token, held and held.token or 0)
  write_counter(counter, retention_ms, 'token', whole(newest), 'released', owner, 'released_at', whole(now_us))
end

local done = read_marker(marker)
local theirs = done and done.by ~= owner
local copy_holds = held and not rightful and held.delivery == delivery
local news = not done or rightful and done.by ~= owner and not done.noted
if marker and how ~= '' and news and not copy_holds then
  theirs = false
  if done or reason then redis.call('DEL', marker) end
  if value then
    write_marker(marker, how, owner, now_us, remembered_ms, 'value', value)
  else
    write_marker(marker, how, owner, now_us, remembered_ms)
  end
end

local known = read_record(record)
local ours = known and known.owner == owner
if record and not (known and known.done) then
  if how == 'returned' and (ours or rightful or again and not known) then
    local mark = ours and known or {key = key, owner = owner, token = token, claimed = now_us, facts = facts}
    if result then
      write_record(record, records, record_key, mark, now_us, kept_ms, 'done', whole(now_us), 'value', result)
    else
      write_record(record, records, record_key, mark, now_us, kept_ms, 'done', whole(now_us))
    end
  elseif ours then
    redis.call('DEL', record)
    ask_index('ZREM', records, record_key)
  end
end

-- Last what frees the key: where a right is missing, it isn't free before the end is remembered.
if rightful then
  redis.call('DEL', lease)
  ask_index('ZREM', index, key)
end
local ended = theirs and 1 or 0
if not reason then return {'released', ended} end
if reason == 'taken' then return {'gone', reason, ended, holder_answer('held', '', held)} end
return {'gone', reason, ended}
