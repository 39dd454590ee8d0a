-- LIST: the keys of a bucket that have a lease, or the idempotency keys that have a record, as far as its index knows.
-- Changes nothing. One that has just gone may still be among them; one that is there all the while is.
--
-- KEYS  1  fence:{bNN}:expiries  sorted set, when each key of the bucket opens; or fence:{bNN}:records, when each
--                                record expires
-- ANSWER  keys, the next to expire first

local answer = redis.pcall('ZRANGEBYSCORE', KEYS[1], whole(math.floor(server_time_us() / 1000)), '+inf')
-- The next grant or renewal begins that index afresh.
return is_of_another_type(answer) and {} or answer
