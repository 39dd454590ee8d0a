-- NOTE: the epilogues of these deliveries are complete: the values kept for them aren't needed any more.
-- A delivery whose end isn't remembered yet is remembered from now on. Safe to send again.
--
-- KEYS  fence:{bNN}:done:<delivery>:<key>, any number of them: hash, how the delivery ended; one that is made here
--       lives for its retention
-- ARGV  for each key, in order: how the delivery ended, how long that is remembered (ms)
-- ANSWER  how many there were

local now_us = server_time_us()
for number, marker in ipairs(KEYS) do
  -- First what needs no memory: so a server that is full keeps no value that nobody needs.
  if read_marker(marker) then
    redis.call('HDEL', marker, 'value')
  else
    redis.call('DEL', marker)
    write_marker(marker, ARGV[2 * number - 1], '', now_us, ARGV[2 * number])
  end
  redis.call('HSET', marker, 'noted', '1')
end
return #KEYS
