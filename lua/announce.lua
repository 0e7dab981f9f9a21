-- announce.lua: notes that events which open pairs are being delivered, so that what resolves them waits for the outcome.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2… books of pairs, see read_books
--
-- ARGV
--   how long a pair is kept (microseconds), books (see read_books)
--   for each event: record, number of its book, pair
--
-- Returns the time. A note counts for as long as the event is leased, so nobody takes it back. Of several events of one pair
-- the last is noted.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local next_argument = reader(ARGV, 0)
local kept = tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 1), now, kept)
for record in next_argument do
  local book = books[tonumber(next_argument())]
  announce_pair(book, next_argument(), record)
end
for _, book in ipairs(books) do
  if #book.values > 0 then
    check_rights(book.until_key, kept)
    write_book(book)
  end
end
return now
