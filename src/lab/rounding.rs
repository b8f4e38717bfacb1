//! Printed decimals: the exact value of the double, ties away from zero. The formatter of the standard
//! library breaks ties to even, which would change a printed figure of lesson 18.

use serde_json::{Number, Value};

/// Digits after the point that every double is written out in, exactly.
const EXACT_DIGITS: usize = 1_074;

/// `value` with `places` digits after the point.
#[must_use]
pub fn text(value: f64, places: usize) -> String {
    let exact = format!("{:.EXACT_DIGITS$}", value.abs());
    let point = exact.find('.').unwrap_or(exact.len());
    let kept: Vec<u8> = exact.bytes().take(point + 1 + places).filter(u8::is_ascii_digit).collect();
    let up = exact.as_bytes().get(point + 1 + places).is_some_and(|digit| *digit >= b'5');
    let mut digits = kept;
    if up {
        let mut place = digits.len();
        loop {
            if place == 0 {
                digits.insert(0, b'1');
                break;
            }
            place -= 1;
            if digits[place] < b'9' {
                digits[place] += 1;
                break;
            }
            digits[place] = b'0';
        }
    }
    let whole = digits.len() - places;
    let mut out = String::with_capacity(digits.len() + 2);
    if value < 0.0 && digits.iter().any(|digit| *digit != b'0') {
        out.push('-');
    }
    out.extend(digits[..whole].iter().map(|digit| char::from(*digit)));
    if places > 0 {
        out.push('.');
        out.extend(digits[whole..].iter().map(|digit| char::from(*digit)));
    }
    out
}

/// `value` with `places` digits after the point as a JSON number: whole if there are none.
#[must_use]
pub fn number(value: f64, places: usize) -> Value {
    let text = text(value, places);
    match places {
        0 => text.parse::<i64>().map_or(Value::Null, Value::from),
        _ => text.parse().ok().and_then(Number::from_f64).map_or(Value::Null, Value::Number),
    }
}

/// A quotient as a whole number: floor of the value and a half.
#[must_use]
pub fn whole(value: f64) -> i64 {
    (value + 0.5).floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_away_from_zero() {
        for (value, places, expected) in [
            (156.25, 1, "156.3"),
            (45.75, 1, "45.8"),
            (0.375, 2, "0.38"),
            (77083.5, 0, "77084"),
            (2.5, 0, "3"),
            (-2.5, 0, "-3"),
            (-0.04, 1, "0.0"),
            (0.0, 2, "0.00"),
            (9.996, 2, "10.00"),
            (99.5, 0, "100"),
            (1e21, 1, "1000000000000000000000.0"),
        ] {
            assert_eq!(text(value, places), expected, "{value}");
        }
    }

    #[test]
    fn only_the_exact_value_counts() {
        // Below the tie that their shortest texts show: 1.005 is 1.00499999999999989…
        assert_eq!((text(1.005, 2).as_str(), text(2.675, 2).as_str()), ("1.00", "2.67"));
        // Above it: 2.225 is 2.22500000000000008…
        assert_eq!(text(2.225, 2), "2.23");
    }

    #[test]
    fn numbers_keep_their_places() {
        assert_eq!(number(48180.0, 0), Value::from(48180));
        assert_eq!(number(156.25, 1), Value::from(156.3));
        assert_eq!((whole(2.5), whole(-2.5), whole(0.49)), (3, -2, 0));
    }
}
