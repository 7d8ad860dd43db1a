//! Splits a list into objects while it arrives, so that only one object is held at a time.
//!
//! It neither decodes nor recurses: it counts brackets and strings, byte by byte.

/// Maximum size of an object in bytes; larger ones are skipped. etcd accepts 1.5 MB by default.
pub(super) const MAX_OBJECT: usize = 32 << 20;
/// Maximum bytes of a list without its objects.
const MAX_ENVELOPE: usize = 1 << 20;
/// A larger buffer is freed after use.
const KEPT_BUFFER: usize = 1 << 16;

/// An item of a list, or a line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum ListItem<'a> {
    /// One object, as JSON.
    Object(&'a [u8]),
    /// An object larger than 32 MiB, skipped.
    TooLarge,
}

/// The text is not a list.
#[derive(Debug, PartialEq, Eq)]
pub struct ListError(pub &'static str);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Outside the items.
    #[default]
    Envelope,
    /// Between two items.
    Between,
    /// In an item.
    Item,
}

/// Parser state between two chunks of a list.
#[derive(Debug, Default)]
pub struct ListSplitter {
    position: Position,
    /// Open brackets in the envelope, and in the item.
    open: usize,
    open_in_item: usize,
    string: bool,
    escaped: bool,
    /// The list without its items.
    envelope: Vec<u8>,
    /// Start and end of the envelope's last string, including quotes.
    last_string: (usize, usize),
    item: Vec<u8>,
    too_large: bool,
    /// Objects so far.
    objects: usize,
    /// Bytes so far.
    bytes: usize,
}

impl ListSplitter {
    /// Parses the next bytes and passes every complete object to `each`.
    ///
    /// # Errors
    /// When the text is not a list, or its envelope is larger than 1 MiB.
    pub fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(ListItem<'_>)) -> Result<(), ListError> {
        self.bytes += chunk.len();
        let mut rest = chunk;
        while !rest.is_empty() {
            let used = match self.position {
                Position::Envelope => self.envelope(rest)?,
                Position::Between => self.between(rest)?,
                Position::Item => self.item(rest, &mut each),
            };
            rest = &rest[used..];
        }
        Ok(())
    }

    /// Mean bytes of an object so far, with its share of the rest; `None` before the first object.
    pub(super) fn mean_object(&self) -> Option<usize> {
        self.bytes.checked_div(self.objects)
    }

    /// The list without its items, after the last byte.
    ///
    /// # Errors
    /// When the list is not at its end.
    pub fn end(self) -> Result<Vec<u8>, ListError> {
        let whole = self.position == Position::Envelope && self.open == 0 && !self.envelope.is_empty();
        if whole { Ok(self.envelope) } else { Err(ListError("the list ends too early")) }
    }

    fn envelope(&mut self, bytes: &[u8]) -> Result<usize, ListError> {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.envelope.len() >= MAX_ENVELOPE {
                return Err(ListError("too many bytes beside the items"));
            }
            self.envelope.push(byte);
            if self.string {
                if !self.in_string(byte) {
                    self.last_string.1 = self.envelope.len();
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.string = true;
                    self.last_string = (self.envelope.len() - 1, 0);
                }
                b'[' if self.open == 1 && self.after_key_items() => {
                    self.position = Position::Between;
                    return Ok(at + 1);
                }
                b'{' | b'[' => self.open += 1,
                b'}' | b']' => {
                    self.open = self.open.checked_sub(1).ok_or(ListError("a bracket closes nothing"))?;
                }
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    /// Whether `"items":` precedes the current bracket.
    fn after_key_items(&self) -> bool {
        let (from, to) = self.last_string;
        let key = self.envelope.get(from..to) == Some(br#""items""#);
        let between = self.envelope.get(to..self.envelope.len().saturating_sub(1)).unwrap_or_default();
        let mut between = between.iter().filter(|byte| !byte.is_ascii_whitespace());
        key && between.next() == Some(&b':') && between.next().is_none()
    }

    fn between(&mut self, bytes: &[u8]) -> Result<usize, ListError> {
        for (at, &byte) in bytes.iter().enumerate() {
            match byte {
                b'{' => {
                    self.position = Position::Item;
                    return Ok(at);
                }
                b']' => {
                    self.envelope.push(b']');
                    self.position = Position::Envelope;
                    return Ok(at + 1);
                }
                b',' => {}
                byte if byte.is_ascii_whitespace() => {}
                _ => return Err(ListError("an item is no object")),
            }
        }
        Ok(bytes.len())
    }

    /// Consumes bytes of the current item; returns how many. Passes the item to `each` when its last bracket closes.
    fn item(&mut self, bytes: &[u8], each: &mut impl FnMut(ListItem<'_>)) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            at += 1;
            if self.string {
                if !self.escaped && byte != b'"' && byte != b'\\' {
                    // Most bytes of a large object are inside strings.
                    let plain = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    at = plain.map_or(bytes.len(), |plain| at + plain);
                    continue;
                }
                self.in_string(byte);
                continue;
            }
            match byte {
                b'"' => self.string = true,
                b'{' | b'[' => self.open_in_item += 1,
                b'}' | b']' => self.open_in_item -= 1,
                _ => {}
            }
            if self.open_in_item == 0 {
                self.keep(&bytes[..at]);
                self.finish(each);
                return at;
            }
        }
        self.keep(bytes);
        at
    }

    /// Handles one byte of a string; returns whether the string continues.
    fn in_string(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.string = false,
            _ => {}
        }
        self.string
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.too_large |= self.item.len() + bytes.len() > MAX_OBJECT;
        if self.too_large {
            self.item = Vec::new();
        } else {
            self.item.extend_from_slice(bytes);
        }
    }

    fn finish(&mut self, each: &mut impl FnMut(ListItem<'_>)) {
        self.objects += 1;
        each(if self.too_large { ListItem::TooLarge } else { ListItem::Object(&self.item) });
        self.too_large = false;
        self.item.clear();
        self.item.shrink_to(KEPT_BUFFER);
        self.position = Position::Between;
    }
}

/// Splits a watch into lines, one at a time, of bounded size.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    too_large: bool,
}

impl Lines {
    /// Takes bytes up to the end of a line. Returns their number, and the line once complete.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Option<ListItem<'_>>) {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (part, used) = match end {
            Some(end) => (&bytes[..end], end + 1),
            None => (bytes, bytes.len()),
        };
        self.too_large |= self.line.len() + part.len() > MAX_OBJECT;
        if self.too_large {
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(part);
        }
        let item =
            end.map(|_| if self.too_large { ListItem::TooLarge } else { ListItem::Object(&self.line) });
        (used, item)
    }

    /// Clears the line after use.
    pub fn clear(&mut self) {
        self.too_large = false;
        self.line.clear();
        self.line.shrink_to(KEPT_BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The objects of a list and the rest of it, fed in chunks of `size` bytes.
    fn split(list: &str, size: usize) -> Result<(Vec<String>, String), ListError> {
        let mut splitter = ListSplitter::default();
        let mut objects = Vec::new();
        for chunk in list.as_bytes().chunks(size) {
            splitter.feed(chunk, |item| match item {
                ListItem::Object(object) => objects.push(String::from_utf8_lossy(object).into_owned()),
                ListItem::TooLarge => objects.push("too large".into()),
            })?;
        }
        let envelope = splitter.end()?;
        Ok((objects, String::from_utf8_lossy(&envelope).into_owned()))
    }

    #[test]
    fn a_list_is_cut_into_its_objects_however_it_arrives() {
        let objects = [
            r#"{"metadata":{"name":"a","items":["x"]},"text":"a \"quoted\" {[ \\"}"#,
            r#"{"list":[{},[],{"items":[1]}],"n":-1.5e3,"t":true,"u":"\u00e4ö"}"#,
            "{}",
        ];
        let list = format!(
            r#"{{"kind":"List","metadata":{{"items":[],"continue":"[{{"}}, "items" : [ {} , {},{} ] ,"more":1}}"#,
            objects[0], objects[1], objects[2]
        );
        for size in [1, 2, 3, 7, 64, 4096] {
            let (found, envelope) = split(&list, size).expect("a list");
            assert_eq!(found, objects, "chunks of {size}");
            let rest: serde_json::Value = serde_json::from_str(&envelope).expect("JSON");
            assert_eq!(rest["metadata"]["continue"], "[{");
            assert_eq!(rest["items"].as_array().map(Vec::len), Some(0));
            assert_eq!(rest["more"], 1);
        }
    }

    #[test]
    fn lists_without_objects_are_lists() {
        for list in [r#"{"items":[]}"#, r#"{"items":null,"metadata":{}}"#, r#"{"metadata":{}}"#] {
            assert_eq!(split(list, 3), Ok((Vec::new(), list.into())));
        }
    }

    #[test]
    fn what_is_no_list_is_an_error_and_no_panic() {
        for text in ["", "]", "}}", r#"{"items":[1]}"#, r#"{"items":[{"a":"#, r#"{"items":[{}"#, "{\"a\":\""]
        {
            assert!(split(text, 2).is_err(), "{text}");
        }
        let wide = format!(r#"{{"x":"{}"}}"#, "y".repeat(MAX_ENVELOPE));
        assert!(split(&wide, 4096).is_err());
    }

    #[test]
    fn nesting_without_end_is_cut_without_recursion() {
        let deep = format!("{}1{}", "{\"a\":[".repeat(100_000), "]}".repeat(100_000));
        let (found, _) = split(&format!(r#"{{"items":[{deep},{{}}]}}"#), 4096).expect("a list");
        assert_eq!(found, [deep.as_str(), "{}"]);
    }

    #[test]
    fn an_object_that_is_too_large_is_left_out_and_its_memory_given_back() {
        let mut splitter = ListSplitter::default();
        let mut seen = Vec::new();
        let mut feed = |bytes: &[u8]| {
            splitter.feed(bytes, |item| seen.push(matches!(item, ListItem::Object(_)))).expect("a list");
        };
        feed(br#"{"items":[{"text":""#);
        (0..MAX_OBJECT / 65_536 + 1).for_each(|_| feed(&[b'x'; 65_536]));
        feed(br#""},{}]}"#);
        assert!(splitter.item.capacity() <= KEPT_BUFFER);
        assert_eq!(seen, [false, true]);
    }

    #[test]
    fn lines_are_cut_however_they_arrive() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\nrest";
        for size in [1, 2, 5, 100] {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in text.chunks(size) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let (used, item) = lines.feed(rest);
                    rest = &rest[used..];
                    if let Some(ListItem::Object(line)) = item {
                        found.push(String::from_utf8_lossy(line).into_owned());
                        lines.clear();
                    }
                }
            }
            assert_eq!(found, ["{\"a\":1}", "", "{\"b\":2}"], "chunks of {size}");
        }
    }
}
