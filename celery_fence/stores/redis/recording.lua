-- Put behind the prelude in the scripts about idempotency records: reading one, and writing one.
-- A record is a claim, made by an acquire, until a release adds when it was done.

-- The record as a table, or nil; `record` is nil for an asker without an idempotency key. `done` is nil for a claim,
-- `value` false where none is kept. A key of another type, or a hash made by hand, is no record.
local function read_record(record)
  if not record then return nil end
  local field = fields_of(record, 'key', 'owner', 'token', 'claimed', 'done', 'value', 'facts')
  if not field or not field[1] then return nil end
  return {
    key = field[1], owner = field[2] or '', token = possible(field[3]) or 0, claimed = possible(field[4]) or 0,
    done = possible(field[5]), value = field[6], facts = field[7] or '',
  }
end

-- lock key, owner, token, claimed (us since the epoch), done (the same, or false), facts, time left (ms), bytes of the
-- value (or false), the value (or false, and always in a list).
local function record_answer(word, record, known, with_value)
  return {
    word, known.key, known.owner, whole(known.token), whole(known.claimed), known.done and whole(known.done) or false,
    known.facts, redis.call('PTTL', record), known.value and #known.value, with_value and known.value,
  }
end

-- Write the record of the idempotency key `name` afresh and let it live for its retention; `...` are more fields.
local function write_record(record, index, name, known, now_us, retention_ms, ...)
  redis.call('DEL', record)
  redis.call(
    'HSET', record, 'key', known.key, 'owner', known.owner, 'token', whole(known.token),
    'claimed', whole(known.claimed), 'facts', known.facts, ...)
  redis.call('PEXPIRE', record, retention_ms)
  note_expiry(index, name, now_us, tonumber(retention_ms))
  redis.call('ZREMRANGEBYSCORE', index, '-inf', whole(math.floor(now_us / 1000)))
end
