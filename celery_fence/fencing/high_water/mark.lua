-- Put in front of every script that keeps a high-water mark: reading one, comparing with it, raising it.
-- Works with Redis 5 and later and with every Valkey. Touches only keys that the script was given.
--
-- A mark is a hash: `token`, `owner` ('' where it isn't known) and, in a stream, `key` (whose tokens they are).

-- The mark as a table, or nil. One without a number is an error: what passes a mark that can't be read isn't fenced.
local function read_mark(name)
  local field = redis.call('HMGET', name, 'token', 'owner', 'key')
  if not field[1] then return nil end
  local token = assert(tonumber(field[1]), 'no fencing token in ' .. name)
  return {token = token, text = field[1], owner = field[2] or '', key = field[3] or ''}
end

-- An equal token of another owner is stale; it passes where one of the two isn't known.
local function is_stale(token, owner, seen)
  if not seen or token > seen.token then return false end
  return token < seen.token or (owner ~= '' and seen.owner ~= '' and owner ~= seen.owner)
end

-- `token` is text as it came, so that no number of 16 digits is rounded. A known owner is never forgotten.
-- `retention_ms` is '0' for a mark that stays for good.
local function raise_mark(name, token, owner, seen, retention_ms)
  if seen and owner == '' and tonumber(token) == seen.token then owner = seen.owner end
  redis.call('HSET', name, 'token', token, 'owner', owner)
  if retention_ms == '0' then redis.call('PERSIST', name) else redis.call('PEXPIRE', name, retention_ms) end
  return owner
end
