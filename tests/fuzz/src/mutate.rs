//! Changes an input the way libFuzzer does: bits, bytes, runs, numbers at their limits, parts of other inputs.

use rand::{Rng, RngExt as _};

/// Texts and numbers at which parsers go wrong.
const SPECIAL: &[&[u8]] = &[
    b"-1",
    b"0",
    b"18446744073709551616",
    b"1e309",
    b"-0.0",
    b"NaN",
    b"null",
    b"{}",
    b"[]",
    b"\"\"",
    b"\\ud800",
    b"\xff\xfe",
    b"\0",
    b"\n",
    b"9223372036854775807",
    b"[[[[[[[[[[[[[[[[",
    b"-----BEGIN CERTIFICATE-----",
];

/// One to eight changes of `input`; `other` gives parts to splice in. At most `longest` bytes come back.
pub fn mutate(rng: &mut impl Rng, input: &[u8], other: &[u8], longest: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.random_range(1..=8) {
        change(rng, &mut bytes, other);
    }
    bytes.truncate(longest);
    bytes
}

fn change(rng: &mut impl Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.random_range(0..=bytes.len());
    let length = rng.random_range(1..=32_usize);
    let end = bytes.len().min(at + length);
    match rng.random_range(0..7) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
        1 if at < bytes.len() => bytes[at] = rng.random(),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let run = bytes[at..end].to_vec();
            bytes.splice(at..at, run);
        }
        4 => {
            let special = SPECIAL[rng.random_range(0..SPECIAL.len())];
            bytes.splice(at..end, special.iter().copied());
        }
        5 if !other.is_empty() => {
            let from = rng.random_range(0..other.len());
            let part = other[from..other.len().min(from + length)].to_vec();
            bytes.splice(at..end, part);
        }
        _ => bytes.insert(at, rng.random()),
    }
}
