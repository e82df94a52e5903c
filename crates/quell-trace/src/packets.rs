//! The packets of a file, which may be gzipped, or of the compressed packets within a packet.
//!
//! Memory is bounded by the longest packet, whatever lengths a file claims and whatever size it unpacks to.

use crate::proto::TracePacket;
use flate2::bufread::MultiGzDecoder;
use flate2::read::ZlibDecoder;
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::WireType;
use std::io::{self, BufRead, BufReader, Read};

/// The longest packet that is accepted, in bytes. Quell's have some KiB, Perfetto's own seldom more than one
/// MiB.
const LONGEST_PACKET: u64 = 8 << 20;

/// The most bytes to which one packet's compressed packets may unpack. Perfetto's come to a few MiB.
const MOST_PACKED: u64 = 64 << 20;

/// The most bytes to which a whole trace may unpack. A small file can unpack to a thousand times its size.
pub const MOST_UNPACKED: u64 = 4 << 30;

/// The reason why there is no further packet.
#[derive(Debug)]
pub enum Wrong {
    /// The file cannot be read.
    Io(io::Error),
    /// The file ends within a packet.
    Ends,
    /// The bytes are no packet; the text says why.
    Corrupt(String),
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Wrong {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Wrong::Ends,
            // The bytes cannot be unpacked.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Wrong::Corrupt(error.to_string())
            }
            _ => Wrong::Io(error),
        }
    }
}

/// A reader of packets, one by one.
#[derive(Debug)]
pub struct Packets<R: BufRead> {
    input: Input<R>,
    /// The number of bytes read, as unpacked.
    pub offset: u64,
    /// The offset at which the present packet begins.
    pub packet_at: u64,
}

#[derive(Debug)]
enum Input<R: BufRead> {
    /// An input that was not examined yet.
    New(R),
    Plain(R),
    Gzip(BufReader<MultiGzDecoder<R>>),
    None,
}

impl<R: BufRead> Read for Input<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Input::New(input) | Input::Plain(input) => input.read(into),
            Input::Gzip(input) => input.read(into),
            Input::None => Ok(0),
        }
    }
}

impl<R: BufRead> BufRead for Input<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Input::New(input) | Input::Plain(input) => input.fill_buf(),
            Input::Gzip(input) => input.fill_buf(),
            Input::None => Ok(&[]),
        }
    }

    fn consume(&mut self, bytes: usize) {
        match self {
            Input::New(input) | Input::Plain(input) => input.consume(bytes),
            Input::Gzip(input) => input.consume(bytes),
            Input::None => {}
        }
    }
}

/// The first bytes of other kinds of files, and what these are.
const OTHERS: &[(&[u8], &str)] = &[
    (b"\x1f", "it is gzipped twice"),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with zstd (unzstd it)",
    ),
    (b"\xfd7zXZ", "it is compressed with xz (unxz it)"),
    (b"PK\x03\x04", "it is a zip archive (unzip it)"),
    (
        b"PERFILE2",
        "it is of `perf record` (try `quell record`, or Perfetto's own recorder)",
    ),
    (
        b"\x17\x08\x44",
        "it is of trace-cmd (try `quell record`, or Perfetto's own recorder)",
    ),
    (b"# tracer", "it is ftrace's text"),
    (b"{", "it is JSON"),
    (b"[", "it is JSON"),
    (b"<", "it is HTML, as of systrace"),
];

impl<R: BufRead> Packets<R> {
    /// The packets of a file.
    pub fn new(input: R) -> Packets<R> {
        Packets {
            input: Input::New(input),
            offset: 0,
            packet_at: 0,
        }
    }

    /// The packets that were compressed within a packet: these are not compressed again.
    pub fn within(input: R) -> Packets<R> {
        Packets {
            input: Input::Plain(input),
            offset: 0,
            packet_at: 0,
        }
    }

    /// Finds out whether the input is gzipped, and refuses known other kinds of files.
    fn begin(&mut self) -> Result<(), Wrong> {
        let gzipped = peek(&mut self.input)?.first() == Some(&0x1f);
        self.input = match std::mem::replace(&mut self.input, Input::None) {
            Input::New(input) if gzipped => Input::Gzip(BufReader::with_capacity(
                1 << 16,
                MultiGzDecoder::new(input),
            )),
            Input::New(input) => Input::Plain(input),
            other => other,
        };
        let first = peek(&mut self.input)?;
        match OTHERS.iter().find(|(magic, _)| first.starts_with(magic)) {
            Some((_, what)) => Err(Wrong::Corrupt(what.to_string())),
            None => Ok(()),
        }
    }

    /// The next byte; `None` where the file ends.
    fn byte(&mut self) -> Result<Option<u8>, Wrong> {
        let byte = peek(&mut self.input)?.first().copied();
        if byte.is_some() {
            self.input.consume(1);
            self.offset += 1;
        }
        Ok(byte)
    }

    fn some_byte(&mut self) -> Result<u8, Wrong> {
        self.byte()?.ok_or(Wrong::Ends)
    }

    fn varint(&mut self, first: u8) -> Result<u64, Wrong> {
        let (mut value, mut byte) = (0, first);
        for shift in (0..64).step_by(7) {
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            byte = self.some_byte()?;
        }
        Err(Wrong::Corrupt(
            "a number of more than ten bytes".to_string(),
        ))
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Wrong> {
        // Not allocated by the length that is claimed, but as bytes come.
        let mut bytes = Vec::new();
        let got = self.input.by_ref().take(length).read_to_end(&mut bytes)? as u64;
        self.offset += got;
        if got < length {
            return Err(Wrong::Ends);
        }
        Ok(bytes)
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// The call fails if the input cannot be read, ends within a packet or holds no packet; the variants of
    /// [`Wrong`] tell these apart.
    pub fn next(&mut self) -> Result<Option<TracePacket>, Wrong> {
        if matches!(self.input, Input::New(_)) {
            self.begin()?;
        }
        loop {
            self.packet_at = self.offset;
            if self.offset > MOST_UNPACKED && matches!(self.input, Input::Gzip(_)) {
                return Err(too_much(MOST_UNPACKED));
            }
            let Some(first) = self.byte()? else {
                return Ok(None);
            };
            let key = self.varint(first)?;
            let wire = WireType::try_from(key & 7).map_err(|e| Wrong::Corrupt(e.to_string()))?;
            if key >> 3 == 0 {
                return Err(Wrong::Corrupt("no packet begins there".to_string()));
            }
            let length = match wire {
                WireType::LengthDelimited => {
                    let first = self.some_byte()?;
                    self.varint(first)?
                }
                WireType::Varint => {
                    let first = self.some_byte()?;
                    self.varint(first)?;
                    0
                }
                WireType::SixtyFourBit => 8,
                WireType::ThirtyTwoBit => 4,
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(Wrong::Corrupt("no packet begins there".to_string()));
                }
            };
            if length > LONGEST_PACKET {
                let why = format!("a packet of {length} bytes; {LONGEST_PACKET} are the most");
                return Err(Wrong::Corrupt(why));
            }
            let bytes = self.bytes(length)?;
            if key >> 3 == 1 && wire == WireType::LengthDelimited {
                let packet = TracePacket::decode(Bytes::from(bytes));
                return packet.map(Some).map_err(|e| Wrong::Corrupt(e.to_string()));
            }
        }
    }
}

/// The following bytes, at least one; empty at the end.
fn peek(input: &mut impl BufRead) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    // The buffer has bytes already.
    input.fill_buf()
}

pub fn too_much(most: u64) -> Wrong {
    Wrong::Corrupt(format!(
        "it unpacks to more than {most} bytes, which are the most"
    ))
}

/// The bytes that a packet has compressed, unpacked.
///
/// # Errors
/// The call fails if the bytes cannot be unpacked or unpack to more than [`MOST_PACKED`]
/// ([`Wrong::Corrupt`]).
pub fn unpacked(packed: &[u8]) -> Result<Vec<u8>, Wrong> {
    let mut bytes = Vec::new();
    let mut decoder = ZlibDecoder::new(packed).take(MOST_PACKED + 1);
    match decoder.read_to_end(&mut bytes) {
        Err(error) => Err(Wrong::Corrupt(error.to_string())),
        Ok(_) if bytes.len() as u64 > MOST_PACKED => Err(too_much(MOST_PACKED)),
        Ok(_) => Ok(bytes),
    }
}
