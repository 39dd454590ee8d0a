-- HOLDERS: who has these keys at this moment. Changes nothing.
--
-- KEYS  fence:{bNN}:lease:<key>, any number of them, all of one bucket
-- ANSWER  one for each key, in order:
--         {'held', '', owner, token, ...}  (see holder_answer)
--         {'free'}

local answers = {}
for number, lease in ipairs(KEYS) do
  local held = read_lease(lease)
  answers[number] = held and holder_answer('held', '', held) or {'free'}
end
return answers
