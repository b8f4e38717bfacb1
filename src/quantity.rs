//! Sizes and durations as operators write them, so that every flag, file key and message agrees on units.
//!
//! Sizes: plain bytes (`65536`, `64b`); decimal units `kb mb gb tb` (powers of 1,000); binary units
//! `kib mib gib tib` and the bare letters `k m g t` (powers of 1,024). Durations: `ns us ms s m h`.
//! Case does not matter, one decimal point is allowed (`1.5gib`), and a result must be whole.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use thiserror::Error;

/// A number of bytes given by an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A length of time given by an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// Why a quantity was not understood; the text names the input and shows how to write one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{input}` is not a {kind}: {why}; write it like {example}")]
pub struct QuantityError {
    input: String,
    kind: &'static str,
    why: &'static str,
    example: &'static str,
}

/// One kibibyte in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte in bytes.
pub const GIB: u64 = 1 << 30;
/// One tebibyte in bytes.
pub const TIB: u64 = 1 << 40;

/// Longest text looked at: anything longer is no number anybody typed.
const INPUT_BYTES_MAX: usize = 40;
/// Digits after the point: more would not change a whole number of bytes or nanoseconds.
const FRACTION_DIGITS_MAX: usize = 12;

const BINARY: [(&str, u64); 4] = [("tib", TIB), ("gib", GIB), ("mib", MIB), ("kib", KIB)];

fn size_unit(text: &str) -> Option<u64> {
    Some(match text {
        "" | "b" => 1,
        "k" | "kib" => KIB,
        "m" | "mib" => MIB,
        "g" | "gib" => GIB,
        "t" | "tib" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

fn span_unit(text: &str) -> Option<u64> {
    Some(match text {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `number × unit` exactly, or why not.
fn scaled(input: &str, unit_of: fn(&str) -> Option<u64>) -> Result<u64, &'static str> {
    let text = input.trim().to_lowercase();
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > INPUT_BYTES_MAX {
        return Err("it is too long");
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err("it does not start with a number");
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err("it has too many digits after the point");
    }
    let unit = u128::from(unit_of(unit.trim()).ok_or("its unit is unknown or missing")?);
    let whole: u128 = whole.parse().map_err(|_| "it is too large")?;
    let divisor = 10u128.pow(fraction.len() as u32);
    let parts: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| "it is too large")? };
    if !(parts * unit).is_multiple_of(divisor) {
        return Err("it is not a whole number of the smallest unit");
    }
    let total = whole.checked_mul(unit).and_then(|product| product.checked_add(parts * unit / divisor));
    total.and_then(|total| u64::try_from(total).ok()).ok_or("it is too large")
}

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(input: &str) -> Result<ByteSize, QuantityError> {
        let refuse = |why| QuantityError {
            input: input.to_owned(),
            kind: "size",
            why,
            example: "8gb, 512kib or 65536",
        };
        scaled(input, size_unit).map(ByteSize).map_err(refuse)
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(input: &str) -> Result<Span, QuantityError> {
        let refuse =
            |why| QuantityError { input: input.to_owned(), kind: "duration", why, example: "2ms, 5s or 1m" };
        if input.trim() == "0" {
            return Ok(Span(Duration::ZERO));
        }
        scaled(input, span_unit).map(|nanoseconds| Span(Duration::from_nanos(nanoseconds))).map_err(refuse)
    }
}

/// Exact and readable back: the largest binary unit that divides the size, else plain bytes.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY.iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => f.pad(&format!("{}{name}", self.0 / unit)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Exact and readable back: the largest unit that divides the duration.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let units: [(&str, u128); 5] =
            [("h", 3_600_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
        let (name, unit) = match nanoseconds {
            0 => ("s", 1),
            _ => units[units.iter().position(|(_, unit)| nanoseconds.is_multiple_of(*unit)).unwrap_or(4)],
        };
        f.pad(&format!("{}{name}", nanoseconds / unit))
    }
}

impl ByteSize {
    /// Rounded for people, two digits after the point: `1.50 GiB`. Not meant to be read back.
    #[must_use]
    pub fn rounded(self) -> String {
        match BINARY.iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) => {
                let name = match *name {
                    "tib" => "TiB",
                    "gib" => "GiB",
                    "mib" => "MiB",
                    _ => "KiB",
                };
                format!("{:.2} {name}", self.0 as f64 / *unit as f64)
            }
            None => format!("{} B", self.0),
        }
    }
}

struct Written<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = QuantityError> + FromBytes> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

/// What a configuration file may hold for the type; private, so that only quantities use it.
trait FromBytes {
    const EXPECTED: &'static str;
}

impl FromBytes for ByteSize {
    const EXPECTED: &'static str = "a size such as \"8gb\" or a number of bytes";
}

impl FromBytes for Span {
    const EXPECTED: &'static str = "a duration such as \"2ms\"";
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<ByteSize, D::Error> {
        input.deserialize_any(Written(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Span, D::Error> {
        input.deserialize_any(Written(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_read_as_the_guide_says() {
        let table = [
            ("0", 0),
            ("65536", 65_536),
            ("64k", 65_536),
            ("64K", 65_536),
            ("64kb", 64_000),
            ("512kib", 524_288),
            ("8gb", 8_000_000_000),
            ("8 GiB", 8 << 30),
            ("1.5gib", 3 << 29),
            ("0.001kb", 1),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in table {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refusals_name_the_input_and_show_an_example() {
        let long = "1".repeat(50);
        for text in [
            "",
            "gb",
            "-1gb",
            "8 bananas",
            "1.5",
            "1..5k",
            "1.k",
            "18446744073709551616",
            "99999999tib",
            &long,
        ] {
            let error = text.parse::<ByteSize>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("8gb"), "{error}");
        }
        for text in ["5", "5 parsecs", "", "0.5ns"] {
            let error = text.parse::<Span>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("2ms"), "{error}");
        }
    }

    #[test]
    fn durations_read_as_the_guide_says() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("0ms", 0),
            ("2ms", 2_000_000),
            ("1.5s", 1_500_000_000),
            ("7us", 7_000),
            ("1m", 60_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_nanos(nanoseconds))), "{text}");
        }
    }

    #[test]
    fn rounded_is_for_people() {
        assert_eq!(ByteSize(3 << 29).rounded(), "1.50 GiB");
        assert_eq!(ByteSize(1_023).rounded(), "1023 B");
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in any::<u64>(), shift in 0u32..40, nanoseconds in any::<u64>()) {
            let size = ByteSize((bytes >> shift) << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let span = Span(Duration::from_nanos(nanoseconds - nanoseconds % [1, 1_000, 1_000_000_000][shift as usize % 3]));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn no_text_panics(text in ".{0,50}") {
            let _ = text.parse::<ByteSize>();
            let _ = text.parse::<Span>();
        }
    }
}
