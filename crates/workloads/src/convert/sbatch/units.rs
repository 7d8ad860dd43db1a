//! Times, sizes and counts as sbatch reads them.

/// `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-`, `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`, as
/// seconds. `None`: no limit, by 0, -1, `UNLIMITED` or `INFINITE`.
///
/// # Errors
/// When it is something else.
pub fn time(text: &str) -> Result<Option<i64>, ()> {
    if text == "-1" || ["UNLIMITED", "INFINITE"].contains(&text.to_ascii_uppercase().as_str()) {
        return Ok(None);
    }
    let number = |part: &str| -> Result<i64, ()> {
        let digits = (1..=9).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten().ok_or(())
    };
    let (days, rest) = text.split_once('-').map_or((None, text), |(days, rest)| (Some(days), rest));
    let parts = rest.split(':').filter(|part| days.is_none() || !rest.is_empty() || !part.is_empty());
    let parts: Vec<i64> = parts.map(number).collect::<Result<_, ()>>()?;
    let seconds = match (days.map(number).transpose()?, parts.as_slice()) {
        (Some(days), parts @ ([] | [_] | [_, _] | [_, _, _])) => {
            let part = |at: usize| parts.get(at).copied().unwrap_or(0);
            days * 86_400 + part(0) * 3600 + part(1) * 60 + part(2)
        }
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        (None, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        _ => return Err(()),
    };
    Ok((seconds > 0).then_some(seconds))
}

/// Whether a type of GPU is a part of one: `1g.10gb`, `a100_3g.20gb`.
pub fn is_part(kind: &str) -> bool {
    let name = kind.rsplit('_').next().unwrap_or_default();
    name.split_once("g.").is_some_and(|(slices, memory)| {
        slices.len() == 1
            && slices.bytes().all(|b| b.is_ascii_digit())
            && memory.to_ascii_lowercase().contains("gb")
    })
}

/// `4000`, `16G`, `512M`, `64GB` as MiB.
pub fn memory(text: &str) -> Option<i64> {
    let unit = text.strip_suffix(['B', 'b']);
    let text = unit.filter(|unit| unit.ends_with(|c: char| c.is_ascii_alphabetic())).unwrap_or(text);
    let (number, factor) = match text.chars().last()? {
        'K' | 'k' => (&text[..text.len() - 1], 1.0 / 1024.0),
        'M' | 'm' => (&text[..text.len() - 1], 1.0),
        'G' | 'g' => (&text[..text.len() - 1], 1024.0),
        'T' | 't' => (&text[..text.len() - 1], 1024.0 * 1024.0),
        _ => (text, 1.0),
    };
    let mib = number.parse::<f64>().ok()? * factor;
    (0.0..=1e9).contains(&mib).then(|| mib.ceil() as i64).filter(|mib| *mib > 0)
}

/// `4`, or with a type `a100:4`: type and number, which may be 0.
pub fn gpus(text: &str) -> Option<(Option<String>, i64)> {
    // `gpu:a100:4(S:0-1)`: sockets do not matter here.
    let text = text.split('(').next().unwrap_or_default();
    let count = |text: &str| if text == "0" { Some(0) } else { count(text) };
    match text.rsplit_once(':') {
        Some((kind, number)) => Some((Some(kind.to_owned()).filter(|kind| !kind.is_empty()), count(number)?)),
        None => match count(text) {
            Some(number) => Some((None, number)),
            // Numbers that are none of GPUs: -1, 1.5, 1e9.
            None if text.is_empty() || text.parse::<f64>().is_ok() => None,
            None => Some((Some(text.to_owned()), 1)),
        },
    }
}

/// A number from 1 to a million.
pub fn count(text: &str) -> Option<i64> {
    text.trim().parse().ok().filter(|number| (1..=1_000_000).contains(number))
}

/// `2` or `2-4`.
pub fn range(text: &str) -> Option<(i64, i64)> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let (min, max) = (count(min)?, count(max)?);
    (min <= max).then_some((min, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_seven_forms_and_four_of_no_limit() {
        for (text, seconds) in [
            ("90", 5_400),
            ("10:30", 630),
            ("24:00:00", 86_400),
            ("1-", 86_400),
            ("2-12", 216_000),
            ("1-00:30", 88_200),
            ("1-01:01:01", 90_061),
        ] {
            assert_eq!(time(text), Ok(Some(seconds)), "{text}");
        }
        for unlimited in ["0", "00:00:00", "0-0", "-1", "UNLIMITED", "infinite"] {
            assert_eq!(time(unlimited), Ok(None), "{unlimited}");
        }
        for wrong in ["", "1:2:3:4", "1-1:2:3:4", "-", "-2", "1.5", "soon", "1::2", "99999999999"] {
            assert_eq!(time(wrong), Err(()), "{wrong}");
        }
    }

    #[test]
    fn sizes_counts_and_ranges_are_read() {
        assert_eq!(
            (memory("4000"), memory("16G"), memory("1T"), memory("512K")),
            (Some(4000), Some(16_384), Some(1 << 20), Some(1))
        );
        assert_eq!(
            (memory("64GB"), memory("64gb"), memory("512Mb")),
            (Some(65_536), Some(65_536), Some(512))
        );
        assert!(
            ["", "G", "B", "64B", "GB", "64GBB", "-1", "0", "lots", "é"]
                .iter()
                .all(|text| memory(text).is_none())
        );
        assert_eq!(gpus("a100:4"), Some((Some("a100".into()), 4)));
        assert_eq!(
            (gpus("8"), gpus("v100"), gpus("a100:8(S:0-1)")),
            (Some((None, 8)), Some((Some("v100".into()), 1)), Some((Some("a100".into()), 8)))
        );
        assert_eq!(
            (range("2"), range("2-4"), range("4-2"), range("0")),
            (Some((2, 2)), Some((2, 4)), None, None)
        );
        assert!(["-1", "1.5", "1e9", "99999999999999999999"].iter().all(|text| gpus(text).is_none()));
        assert_eq!(gpus("2080ti"), Some((Some("2080ti".into()), 1)));
        assert_eq!(
            (gpus(""), gpus("0"), gpus("a100:0")),
            (None, Some((None, 0)), Some((Some("a100".into()), 0)))
        );
    }
}
