//! Reads along where the requests of HTTP/1 begin and end, and spoils what could be read in two ways.
//!
//! The parser behind this is lenient where it may be: a line may end without CR, a length may be told twice, or be told
//! beside `chunked`. A proxy in front of us may read such a request otherwise, and what is a body to it is then a head
//! to us: another's request, smuggled past it. Nobody honest writes like that. What is ambiguous is spoilt by a NUL, which
//! no parser takes, and nothing behind it is read: the parser answers 400 and hangs up.

use memchr::memchr;

/// What a connection's bytes are, up to the last one seen.
#[derive(Debug)]
pub struct Framing {
    part: Part,
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    /// How long that line is so far.
    line_length: usize,
    /// Of the line, if anything came yet.
    last: Option<u8>,
    head: Head,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Before a request, where empty lines are overlooked, or in its first line.
    Start,
    Fields,
    Body {
        left: u64,
    },
    ChunkSize,
    Chunk {
        left: u64,
    },
    /// The end of line that follows a chunk.
    ChunkEnd,
    Trailers,
    /// HTTP/2, which frames by numbers.
    Other,
    Spoilt,
}

/// What the head says so far about the body.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    length: Option<u64>,
    is_chunked: bool,
    is_preface: bool,
}

/// A line that two parsers could read in two ways.
struct Ambiguous;

impl Framing {
    pub fn new() -> Self {
        Self { part: Part::Start, line: Vec::new(), line_length: 0, last: None, head: Head::default() }
    }

    /// Looks at what has come, spoils in it what must not reach the parser, and says how many bytes of it may.
    pub fn pass(&mut self, bytes: &mut [u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            let rest = &mut bytes[passed..];
            passed += match self.part {
                Part::Other => rest.len(),
                Part::Spoilt => break,
                Part::Body { left } | Part::Chunk { left } => self.skip(left, rest.len()),
                Part::Start | Part::Fields | Part::ChunkSize | Part::ChunkEnd | Part::Trailers => self.read_line(rest),
            };
        }
        passed
    }

    /// What came last ends the connection.
    pub fn is_spoilt(&self) -> bool {
        self.part == Part::Spoilt
    }

    fn skip(&mut self, left: u64, there: usize) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        let left = left - taken as u64;
        self.part = match self.part {
            Part::Body { .. } if left == 0 => Part::Start,
            Part::Body { .. } => Part::Body { left },
            _ if left == 0 => Part::ChunkEnd,
            _ => Part::Chunk { left },
        };
        taken
    }

    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let end = memchr(b'\n', bytes);
        let more = &bytes[..end.unwrap_or(bytes.len())];
        let kept = more.len().min(LINE_KEPT - self.line.len());
        self.line.extend_from_slice(&more[..kept]);
        self.line_length += more.len();
        self.last = more.last().copied().or(self.last);
        let Some(end) = end else { return bytes.len() };
        match self.line_ended() {
            Ok(part) => self.part = part,
            Err(Ambiguous) => {
                self.part = Part::Spoilt;
                bytes[end] = 0;
            }
        }
        self.line.clear();
        (self.line_length, self.last) = (0, None);
        end + 1
    }

    fn line_ended(&mut self) -> Result<Part, Ambiguous> {
        if self.last != Some(b'\r') {
            return Err(Ambiguous);
        }
        // Without its CR. One that was cut has none.
        let line = &self.line[..self.line.len().min(self.line_length - 1)];
        let is_whole = line.len() == self.line_length - 1;
        match self.part {
            Part::Start if line.is_empty() => Ok(Part::Start),
            Part::Start => {
                self.head = Head { is_preface: line == b"PRI * HTTP/2.0", ..Head::default() };
                Ok(Part::Fields)
            }
            Part::Fields if line.is_empty() => Ok(self.head.body()),
            Part::Fields => self.head.take(line, is_whole).map(|()| Part::Fields),
            Part::ChunkSize => chunk_size(line).map(|size| match size {
                0 => Part::Trailers,
                left => Part::Chunk { left },
            }),
            Part::ChunkEnd if line.is_empty() => Ok(Part::ChunkSize),
            Part::ChunkEnd => Err(Ambiguous),
            Part::Trailers if line.is_empty() => Ok(Part::Start),
            Part::Trailers => Ok(Part::Trailers),
            part @ (Part::Body { .. } | Part::Chunk { .. } | Part::Other | Part::Spoilt) => Ok(part),
        }
    }
}

impl Head {
    fn take(&mut self, line: &[u8], is_whole: bool) -> Result<(), Ambiguous> {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err(Ambiguous);
        }
        let Some(colon) = memchr(b':', line) else { return Ok(()) };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        let (is_length, is_coding) =
            (name.eq_ignore_ascii_case(b"content-length"), name.eq_ignore_ascii_case(b"transfer-encoding"));
        if !is_length && !is_coding {
            return Ok(());
        }
        if !is_whole || self.length.is_some() || self.is_chunked {
            return Err(Ambiguous);
        }
        if is_length {
            self.length = Some(decimal(value).ok_or(Ambiguous)?);
        } else if value.eq_ignore_ascii_case(b"chunked") {
            self.is_chunked = true;
        } else {
            return Err(Ambiguous);
        }
        Ok(())
    }

    fn body(self) -> Part {
        match self {
            Self { is_preface: true, .. } => Part::Other,
            Self { is_chunked: true, .. } => Part::ChunkSize,
            Self { length: Some(left @ 1..), .. } => Part::Body { left },
            Self { .. } => Part::Start,
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// A size may be followed by an extension, which nobody has.
fn chunk_size(line: &[u8]) -> Result<u64, Ambiguous> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_size = (1..=15).contains(&digits) && line.get(digits).is_none_or(|next| matches!(next, b';' | b' ' | b'\t'));
    let text = std::str::from_utf8(&line[..digits]).ok().filter(|_| is_size);
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(Ambiguous)
}

/// More than any line needs that tells of a body.
const LINE_KEPT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What reaches the parser if it comes in pieces of this size, and what is expected next.
    fn passed(text: &str, piece: usize) -> (Vec<u8>, Part) {
        let mut framing = Framing::new();
        let mut bytes = text.as_bytes().to_vec();
        let mut passed = Vec::new();
        for piece in bytes.chunks_mut(piece) {
            let count = framing.pass(piece);
            passed.extend_from_slice(&piece[..count]);
        }
        (passed, framing.part)
    }

    #[test]
    fn what_can_be_read_in_one_way_only_is_left_as_it_is() {
        for (text, next) in [
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", Part::Start),
            ("\r\nGET / HTTP/1.1\r\n\r\n\r\n", Part::Start),
            ("POST / HTTP/1.1\r\nContent-Length:  3 \r\n\r\na\nbGET / HTTP/1.1\r\n", Part::Fields),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab", Part::Body { left: 1 }),
            ("POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", Part::Start),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n", Part::Start),
            (
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nA;x=y\r\n\n\n\n\n\n\n\n\n\n\n\r\n00\r\na: b\r\n\r\n",
                Part::Start,
            ),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\n\n\n", Part::Other),
        ] {
            for piece in [1, 2, 3, 7, text.len()] {
                assert_eq!(passed(text, piece), (text.as_bytes().to_vec(), next), "{text:?} by {piece}");
            }
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_spoilt() {
        let padded = format!("POST / HTTP/1.1\r\ncontent-length: {}3\r\n", " ".repeat(200));
        for text in [
            "GET / HTTP/1.1\n",
            "\n",
            "GET / HTTP/1.1\r\nhost: x\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "GET / HTTP/1.1\r\nhost: x\r\n y\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nContent-Length: 3\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n",
            "POST / HTTP/1.1\r\ncontent-length : 3\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ncontent-length: -3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: +3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0x3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3, 3\r\n",
            "POST / HTTP/1.1\r\ncontent-length:\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 18446744073709551619\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-3\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n10000000000000003\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\n",
            &padded,
        ] {
            let mut spoilt = text.as_bytes().to_vec();
            *spoilt.last_mut().expect("it has an end") = 0;
            for piece in [1, 2, 3, 7, text.len()] {
                assert_eq!(passed(text, piece), (spoilt.clone(), Part::Spoilt), "{text:?} by {piece}");
            }
            let (after, _) = passed(&format!("{text}GET / HTTP/1.1\r\n\r\n"), 5);
            assert_eq!(after, spoilt, "{text:?}: nothing behind it is read");
        }
    }

    proptest! {
        #[test]
        fn it_is_the_same_in_whatever_pieces_it_comes(text in "(GET |POST |content-length: [0-9]|transfer-encoding: chunked|x: y|[0-9]|\r\n|\r\n|\n|\r| |PRI \\* HTTP/2.0){0,40}", piece in 1..20usize) {
            prop_assert_eq!(passed(&text, piece), passed(&text, text.len().max(1)));
        }
    }
}
