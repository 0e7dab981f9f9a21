-- announce.lua: records that firing events are being delivered, so that the events that resolve them wait for the outcome.
--
-- KEYS
--   1   calls  sorted set: nonce of a call that granted something -> its time
--   2…  books of pairs, see read_books
--
-- ARGV
--   how long a pair is kept (microseconds), books (see read_books)
--   for each event: event key, number of its book, pair
--
-- Returns the time. An announcement counts as long as the event is leased, so nothing removes it. Of several events of one pair
-- the last is recorded.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/pairs

local next_argument = reader(ARGV, 0)
local kept = tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 1), now, kept)
for event_key in next_argument do
  local book = books[tonumber(next_argument())]
  announce_pair(book, next_argument(), event_key)
end
for _, book in ipairs(books) do
  if #book.values > 0 then
    check_rights(book.until_key, kept)
    write_book(book)
  end
end
return now
