//! Charts as SVG that stand by themselves, on light and dark pages: what reports and the command line share.
//!
//! Drawn by plotters. It knows no style sheets, so ink and background are drawn in two colours of their own, which
//! [`svg`] replaces by what the page has.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::{IntoFont, RGBColor, TextStyle};

pub use plotters;

/// A picture being drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Why a picture could not be drawn: a coordinate that is no number.
pub type Error = DrawingAreaErrorKind<std::io::Error>;

/// Text and axes.
pub const INK: RGBColor = RGBColor(1, 2, 3);
/// Lines of the grid.
pub const GRID: RGBColor = RGBColor(128, 129, 130);
/// What is above a bound, or late.
pub const WARNING: RGBColor = RGBColor(213, 94, 0);
/// Colours that most eyes tell apart (Okabe and Ito, "Color Universal Design", 2008), visible on white and on black. Theirs of
/// [`WARNING`] is left out.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
];
/// Mean width of a letter, in parts of the size of the font.
const LETTER: f64 = 0.58;

/// Colour of a series by its index. The second five are greyer than the first; then they repeat.
pub fn colour(series: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[series % COLOURS.len()];
    let greyer = |part: u8| u8::midpoint(part, GRID.0);
    if (series / COLOURS.len()).is_multiple_of(2) {
        RGBColor(red, green, blue)
    } else {
        RGBColor(greyer(red), greyer(green), greyer(blue))
    }
}

/// Style of text of this size in pixels.
pub fn text_style(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Width of a text of this size in pixels, estimated.
pub fn width_of(text: &str, size: u32) -> u32 {
    (text.chars().count() as f64 * LETTER * f64::from(size)).ceil() as u32
}

/// A picture of this size in pixels. `label` is what a screen reader says.
///
/// # Errors
/// Those of `paint`.
pub fn svg(
    (width, height): (u32, u32),
    label: &str,
    paint: impl FnOnce(&Area<'_>) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        paint(&area)?;
        area.present()?;
    }
    let size = format!("width=\"{width}\" height=\"{height}\"");
    let named = format!("role=\"img\" aria-label=\"{}\"", escape(label));
    let mut svg = svg.replacen(&size, &named, 1);
    // Removes characters that XML 1.0 forbids even as references.
    svg.retain(|c| (c >= ' ' || c == '\n') && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    Ok(svg.replace("#010203", "currentColor"))
}

/// Label of a tick: six decimals at most, no trailing zeros.
pub fn tick_label(value: &f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// Escapes text for XML and drops characters that XML 1.0 forbids.
pub fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|c| *c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Corners of a step function: at most `2 * max_points`. Each run of points keeps its maximum, so
/// that peaks stay visible.
pub fn steps(points: &[(f64, f64)], end: f64, max_points: usize) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(max_points.max(1)).max(1);
    let highest = points.chunks(each).filter_map(|part| part.iter().max_by(|a, b| a.1.total_cmp(&b.1)));
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for (x, y) in highest.copied() {
        if let Some((_, before)) = corners.last().copied() {
            corners.push((x, before));
        }
        corners.push((x, y));
    }
    if let Some((_, last)) = corners.last().copied() {
        corners.push((end, last));
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::element::Text;

    #[test]
    fn a_picture_takes_the_pages_ink_and_its_names_cannot_break_it() {
        let drawn = svg((100, 50), "a<b>", |area| area.draw(&Text::new("x < y & z", (5, 5), text_style(12))))
            .unwrap();
        assert!(drawn.contains("currentColor") && !drawn.contains("#010203"), "{drawn}");
        assert!(drawn.contains("aria-label=\"a&lt;b&gt;\"") && drawn.contains("x &lt; y &amp; z"), "{drawn}");
        assert!(!drawn.contains("width=\"100\"") && drawn.contains("viewBox=\"0 0 100 50\""), "{drawn}");
    }

    #[test]
    fn steps_hold_until_the_next_and_keep_the_highest() {
        assert_eq!(
            steps(&[(0.0, 1.0), (2.0, 3.0)], 5.0, 10),
            [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (5.0, 3.0)]
        );
        let many: Vec<(f64, f64)> =
            (0..1_000).map(|i| (f64::from(i), if i == 777 { 9.0 } else { 1.0 })).collect();
        let thin = steps(&many, 1_000.0, 50);
        assert!(thin.len() <= 101 && thin.iter().any(|(_, y)| *y == 9.0));
        assert!(steps(&[], 1.0, 10).is_empty());
    }
}
