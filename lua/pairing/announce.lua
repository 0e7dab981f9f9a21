-- announce.lua: records that firing events are being delivered, so that the events that resolve them wait for the outcome.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   leased  sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3…  books of pairs, see read_books
--
-- ARGV
--   retention, retention of pairs (both microseconds), books (see read_books)
--   for each event: event key, number of its book, pair, delivery without a receipt (see read_delivery)
--
-- Returns the time. An announcement counts as long as the event is leased and not done.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/pairs

local next_argument = reader(ARGV, 0)
local leased_key = KEYS[2]
local retention, kept = tonumber(next_argument()), tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 2), now, kept)

local function is_leased(event_key)
  return tonumber(redis.call('ZSCORE', leased_key, event_key) or 0) > now - retention
end

for event_key in next_argument do
  local book = books[tonumber(next_argument())]
  announce_pair(book, next_argument(), event_key, next_argument(), is_leased)
end
for _, book in ipairs(books) do
  if next(book.changed) or next(book.unwritten) then
    check_rights(book.until_key, kept)
    write_book(book)
  end
end
return now
