-- RECORDS: what is known of these idempotency keys. Changes nothing.
--
-- KEYS  fence:{bNN}:record:<idempotency key>, any number of them, all of one bucket
-- ARGV  1  '1': with their values
-- ANSWER  one for each key, in order:
--         {'record', lock key, owner, ...}  (see record_answer)
--         {'none'}

local answers = {}
for number, record in ipairs(KEYS) do
  local known = read_record(record)
  answers[number] = known and record_answer('record', record, known, ARGV[1] == '1') or {'none'}
end
return answers
