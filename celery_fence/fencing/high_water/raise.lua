-- RAISE: raise the high-water mark of one scope to a token, unless a newer one was here. Safe to send again.
--
-- KEYS  1  <prefix>:mark:<scope>  hash, the mark (see mark.lua); lives for the retention after its last use
-- ARGV  1  token
--       2  owner, or '' where it isn't known
--       3  retention of the mark, ms; 0: for good
-- ANSWER  {token, owner}  of the mark that stands now

local name, token, owner, retention_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local seen = read_mark(name)
if is_stale(tonumber(token), owner, seen) then return {seen.text, seen.owner} end
return {token, raise_mark(name, token, owner, seen, retention_ms)}
