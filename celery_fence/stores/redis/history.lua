-- HISTORY: what the counter of a key remembers, for people. Changes nothing.
--
-- KEYS  1  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
-- ANSWER  {token, released at, forced up to}  the first and last are tokens, which are times in us since the epoch
--                                             as well; '' or false where nothing is remembered

return fields_of(KEYS[1], 'token', 'released_at', 'forced') or {'', '', ''}
