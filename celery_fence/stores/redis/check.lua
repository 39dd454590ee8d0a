-- CHECK: may leases live here? Does once, on names of its own, whatever the other scripts do, and leaves nothing
-- behind. What isn't permitted or possible (a user without rights, a replica, a full server, a Cluster, where two
-- buckets can't be asked about at once) is the answer's error.
--
-- KEYS  1  fence:{b00}:check:hash  hash; deleted again, at the latest after a second
--       2  fence:{b01}:check:set   sorted set; deleted again, at the latest after a second
-- ANSWER  the server's maxmemory-policy, or '' where this user may not ask for it

local hash, set = KEYS[1], KEYS[2]

local steps = {
  -- First what needs memory: a server that is full refuses it, as long as nothing has been written.
  {'HSET', hash, 'a', '1'},
  {'PEXPIRE', hash, 1000},
  {'ZADD', set, 1, 'a'},
  {'PEXPIRE', set, 1000},
  {'TIME'},
  {'PTTL', hash},
  {'HMGET', hash, 'a'},
  {'HDEL', hash, 'a'},
  {'ZRANGEBYSCORE', set, 0, 1},
  {'ZREMRANGEBYSCORE', set, 0, 1},
  {'ZREM', set, 'a'},
  {'DEL', hash, set},
}

for _, step in ipairs(steps) do
  local answer = redis.pcall(unpack(step))
  if type(answer) == 'table' and answer.err then
    -- Servers up to 7.0 don't say which command a user may not run.
    return redis.error_reply(answer.err .. " (at the '" .. string.lower(step[1]) .. "' command)")
  end
end

local memory = redis.pcall('INFO', 'memory')
return type(memory) == 'string' and string.match(memory, 'maxmemory_policy:([%w-]+)') or ''
