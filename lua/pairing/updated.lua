-- updated.lua: records that resolved events have updated messages that they resolve. A repeated call changes nothing.
--
-- KEYS
--   1   calls  sorted set: nonce of a call that granted something -> its time
--   2…  books of pairs, see read_books
--
-- ARGV
--   books (see read_books)
--   for each event: event key, number of its book, how many messages are left beside the first one
--
-- Returns the time.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/pairs

local next_argument = reader(ARGV, 0)
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 1), now, 0)
for event_key in next_argument do
  local book, left = books[tonumber(next_argument())], tonumber(next_argument())
  local entry = read_pair(book, taken_pair(event_key))
  local messages = read_messages(entry)
  if messages and #messages > 1 + left then
    local remaining = { messages[1] }
    for i = #messages - left + 1, #messages do
      remaining[#remaining + 1] = messages[i]
    end
    put_pair(book, taken_pair(event_key), messages_text(remaining), entry.expires)
  end
end
write_books(books)
return now
