-- count.lua: returns which messages do not show all events that are folded into them, or begins to show the count of one message.
--
-- KEYS
--   1   calls  sorted set: nonce of a call that granted something -> its time
--   2…  books of pairs, see read_books
--
-- ARGV
--   shortest time between two updates that show the count of a message (microseconds), books (see read_books)
--   for each pair: number of its book, pair, receipt of the message whose count is to be shown, '' for none
--
-- Returns a list for each pair
--   without a receipt: for each message that shows too few events its receipt, how many are folded into it, and the microseconds
--   until it may show them
--   with a receipt: the microseconds until the message may show its count; if they are 0, the events that are folded into it, the time
--   of the newest one, the rank of the severity, and of the key: 1 if it is flapping, 1 if it fires; nothing if the message is not in the
--   open pair
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/pairs lib/flaps

local next_argument = reader(ARGV, 0)
local interval = tonumber(next_argument())
local now = deployment_time(KEYS[1])
local books = read_books(next_argument, reader(KEYS, 1), now, 0)

local function wait_of(message)
  return math.max(0, message.shown + interval - now)
end

local function begin(book, pair, entry, messages, receipt)
  for _, m in ipairs(messages) do
    if m.receipt == receipt then
      local wait = wait_of(m)
      if wait == 0 then
        m.shown, m.told = now, m.folded
        put_pair(book, pair, messages_text(messages), entry.expires)
      end
      local flap = read_flap(book, pair) or {}
      return { wait, m.folded, m.last, m.rank, flap.flapping and 1 or 0, flap.fires and 1 or 0 }
    end
  end
  return {}
end

local reply = {}
for number in next_argument do
  local book, pair, receipt = books[tonumber(number)], next_argument(), next_argument()
  local entry, list = read_pair(book, pair), {}
  local messages = read_messages(entry) or {}
  if receipt ~= '' then
    list = begin(book, pair, entry, messages, receipt)
  else
    for _, m in ipairs(messages) do
      if m.folded > m.told then
        list[#list + 1], list[#list + 2], list[#list + 3] = m.receipt, m.folded, wait_of(m)
      end
    end
  end
  reply[#reply + 1] = list
end
write_books(books)
return reply
