//! Charts as one SVG that stands by itself: no script, no font, no file beside it.

use std::fmt::Write;

use super::{Chart, Measure, Scale, Series};

/// Colours that most people can distinguish (Okabe and Ito), and dashes for types beyond them.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

const WIDTH: f64 = 760.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const HEAD: f64 = 44.0;
/// One chart: what is above its axes, the axes, and the labels below.
const TOP: f64 = 14.0;
const AXES: f64 = 300.0;
const BELOW: f64 = 52.0;
const LINE: f64 = 18.0;

fn escape(text: &str) -> String {
    // What XML 1.0 has no place for, not even as a reference.
    let text: String = text.chars().filter(|c| *c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}')).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How the series of one number is drawn.
fn style(i: usize) -> (&'static str, &'static str) {
    (COLOURS[i % COLOURS.len()], DASHES[i / COLOURS.len() % DASHES.len()])
}

/// As a picture that stands by itself.
pub(in super::super) fn svg(title: &str, charts: &[Chart]) -> String {
    let empty = Vec::new();
    let types: &Vec<Series> = charts.first().map_or(&empty, |chart| &chart.series);
    let chart = TOP + AXES + BELOW;
    let legend = HEAD + chart * charts.len() as f64;
    let height = legend + LINE * (types.len() + 2) as f64 + 4.0;
    let title = escape(title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"16\">{title}</text>\n"
    );
    for (i, one) in charts.iter().enumerate() {
        axes(&mut out, one, i, HEAD + chart * i as f64 + TOP);
    }
    let mut y = legend + 4.0;
    for (i, s) in types.iter().enumerate() {
        let (colour, dash) = style(i);
        let points = charts.iter().map(|chart| chart.series.get(i).map_or(0, |s| s.points.len())).max();
        let points = points.unwrap_or_default();
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{0}\" y1=\"{1}\" y2=\"{1}\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/><circle cx=\"{2}\" cy=\"{1}\" r=\"3.5\" fill=\"{colour}\"/>\
             <text x=\"{3}\" y=\"{4}\">{5} ({points} measured)</text>",
            LEFT + 32.0,
            y,
            LEFT + 16.0,
            LEFT + 42.0,
            y + 4.0,
            escape(&s.name),
        );
        y += LINE;
    }
    const NOTES: [&str; 2] = [
        "Lines: predicted; bands: 90 % intervals; dots: measured;",
        "rings: measured with another batch, power limit or spread over nodes.",
    ];
    for note in NOTES {
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\" fill=\"#666666\">{note}</text>", y + 4.0);
        y += LINE;
    }
    out.push_str("</svg>\n");
    out
}

/// One chart with its axes, `top` being where they begin.
fn axes(out: &mut String, Chart { measure, series }: &Chart, number: usize, top: f64) {
    let scale = Scale::of(series, true);
    let x = |gpus: u32| LEFT + scale.across(gpus) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| top + scale.down(value) * AXES;
    let (right, bottom) = (WIDTH - RIGHT, top + AXES);
    for gpus in scale.counts() {
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\">{gpus}</text>",
            x(gpus),
            bottom + 16.0
        );
    }
    for tick in ticks(scale.y.0.exp(), scale.y.1.exp()) {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(tick),
            LEFT - 8.0,
            y(tick) + 4.0,
            plain(tick)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{0}\" y=\"{1}\" text-anchor=\"middle\">GPUs</text>\
         <text x=\"20\" y=\"{2}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {2})\">{3}</text>\n\
         <clipPath id=\"axes{number}\"><rect x=\"{LEFT}\" y=\"{top}\" width=\"{4}\" height=\"{AXES}\"/></clipPath>\n\
         <g clip-path=\"url(#axes{number})\">",
        f64::midpoint(LEFT, right),
        bottom + 34.0,
        top + AXES / 2.0,
        measure.title(),
        right - LEFT
    );
    for (i, s) in series.iter().enumerate() {
        let (colour, dash) = style(i);
        let path = |which: usize, reverse: bool| {
            let mut points: Vec<String> =
                s.curve.iter().map(|(g, at)| format!("{:.1},{:.1}", x(*g), y(at[which]))).collect();
            if reverse {
                points.reverse();
            }
            points.join(" ")
        };
        let _ = writeln!(
            out,
            "<polygon points=\"{} {}\" fill=\"{colour}\" fill-opacity=\"0.13\"/>\
             <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
            path(1, false),
            path(2, true),
            path(0, false)
        );
    }
    out.push_str("</g>\n");
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{AXES}\" fill=\"none\" stroke=\"#888888\"/>",
        right - LEFT
    );
    for (i, s) in series.iter().enumerate() {
        let (colour, _) = style(i);
        for point in &s.points {
            let fill = if point.on_curve { colour } else { "#ffffff" };
            let _ = writeln!(
                out,
                "<circle class=\"measured\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\" fill-opacity=\"0.8\" \
                 stroke=\"{colour}\"><title>{}: {} GPUs, {}</title></circle>",
                x(point.gpus),
                y(point.value),
                escape(&s.name),
                point.gpus,
                described(*measure, point.value)
            );
        }
    }
}

fn described(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Epoch => format!("{} s", super::super::number(value)),
        Measure::Power => format!("{} W", super::super::number(value)),
    }
}

/// Round numbers between two positive ones, some three to eight of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let inside = |tick: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick);
    let tens = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let of = |digits: &[f64]| -> Vec<f64> {
        let each = tens.clone().flat_map(|ten| digits.iter().map(move |digit| digit * 10_f64.powi(ten)));
        each.filter(inside).collect()
    };
    for digits in [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]] {
        let ticks = of(digits);
        if (3..=8).contains(&ticks.len()) {
            return ticks;
        }
    }
    let ticks = of(&[1.0]);
    if ticks.len() > 8 {
        let every = ticks.len().div_ceil(8);
        return ticks.into_iter().step_by(every).collect();
    }
    // Less than a factor of two or so: even steps.
    let rough = (high - low) / 4.0;
    let ten = 10_f64.powi(rough.log10().floor() as i32);
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * ten).into_iter().find(|step| *step >= rough);
    let Some(step) = step.filter(|step| *step > 0.0) else { return vec![low, high] };
    let first = (low / step).ceil();
    (0..8).map(|i| (first + f64::from(i)) * step).filter(inside).collect()
}

/// A round number without what is not needed of it.
fn plain(tick: f64) -> String {
    if !(1e-4..1e7).contains(&tick) {
        return format!("{tick:.0e}");
    }
    let text = format!("{tick:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let Some((whole, part)) = text.split_once('.').or(Some((text.as_str(), ""))) else { return text };
    let digits = whole.len();
    let grouped: String = whole
        .chars()
        .enumerate()
        .flat_map(|(i, c)| (i > 0 && (digits - i) % 3 == 0).then_some(',').into_iter().chain([c]))
        .collect();
    if part.is_empty() { grouped } else { format!("{grouped}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::series;
    use super::*;

    #[test]
    fn axes_have_round_numbers_some_three_to_eight() {
        for (low, high) in
            [(1.0, 100.0), (98.0, 103.0), (0.001, 1e6), (1.0, 1.0001), (40.0, 55.0), (1e-6, 1e12)]
        {
            let ticks = ticks(low, high);
            assert!((2..=9).contains(&ticks.len()), "{low}..{high}: {ticks:?}");
            assert!(ticks.is_sorted() && ticks[0] >= low * 0.999_999, "{low}..{high}: {ticks:?}");
        }
        let plain = [0.2, 5.0, 1_500.0, 200_000.0, 1e9, 1e-6].map(plain);
        assert_eq!(plain, ["0.2", "5", "1,500", "200,000", "1e9", "1e-6"]);
    }

    #[test]
    fn every_number_of_a_picture_is_one_and_what_is_elsewhere_is_a_ring() {
        let chart = |measure| Chart { measure, series: vec![series(); 9] };
        let drawn = svg("a\u{1}b", &[chart(Measure::Epoch), chart(Measure::Power)]);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains('\u{1}'));
        assert!(drawn.contains("seconds per epoch") && drawn.contains("watts of all GPUs"));
        assert_eq!(drawn.matches("class=\"measured\"").count(), 2 * 9 * 2);
        assert_eq!(drawn.matches("fill=\"#ffffff\" fill-opacity").count(), 2 * 9);
        // The legend ends above the bottom.
        let height: f64 =
            drawn.split("height=\"").nth(1).and_then(|r| r.split('"').next()).unwrap().parse().unwrap();
        let last = drawn.rsplit("y=\"").next().and_then(|r| r.split('"').next()).unwrap();
        assert!(last.parse::<f64>().unwrap() < height, "{last} of {height}");
    }
}
