//! Charts as one SVG file that stands by itself: no script, no font, no file beside it.

use andreas_charts::plotters::chart::{ChartBuilder, SeriesLabelPosition};
use andreas_charts::plotters::coord::combinators::IntoLogRange as _;
use andreas_charts::plotters::element::{Circle, PathElement, Polygon};
use andreas_charts::plotters::series::LineSeries;
use andreas_charts::plotters::style::Color as _;
use andreas_charts::{Area, Error, GRID, INK, colour, escape, text_style, tick_label};

use super::{Chart, Measure, Scale, Series};

const WIDTH: u32 = 760;
const CHART: u32 = 380;
const NOTES: [&str; 2] = [
    "Lines: predicted; bands: 90 % intervals; dots: measured;",
    "rings: measured with another batch, power limit or spread over nodes.",
];
const LINE: u32 = 18;

/// As a picture that stands by itself.
pub(in super::super) fn svg(title: &str, charts: &[Chart]) -> String {
    let height = 40 + CHART * u32::try_from(charts.len()).unwrap_or(1) + LINE * 3;
    let drawn = andreas_charts::svg((WIDTH, height), title, |area| {
        let (head, rest) = area.split_vertically(36);
        head.titled(title, text_style(18))?;
        let (body, foot) = rest.split_vertically(height.saturating_sub(36 + 2 * LINE + 8));
        let parts = body.split_evenly((charts.len().max(1), 1));
        for (part, chart) in parts.iter().zip(charts) {
            draw(part, chart)?;
        }
        for (line, note) in (0..).zip(NOTES) {
            let at = (70, line * i32::try_from(LINE).unwrap_or(18));
            foot.draw_text(note, &text_style(13), at)?;
        }
        Ok(())
    });
    // A file has no page that says which ink it has.
    let drawn = drawn.unwrap_or_else(|error| {
        let message = escape(&error.to_string());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\"><text y=\"20\">not drawn: {message}</text></svg>\n"
        )
    });
    drawn.replacen("<svg ", "<svg style=\"color:#222;background:#fff\" ", 1)
}

fn draw(area: &Area<'_>, Chart { measure, series }: &Chart) -> Result<(), Error> {
    let scale = Scale::new(series, true);
    let (low, high) = (scale.y.0.exp(), scale.y.1.exp());
    let most = scale.x.1.exp2().max(2.0);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((1.0..most).log_scale().base(2.0), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID.mix(0.4))
        .axis_style(INK)
        .label_style(text_style(13))
        .x_label_formatter(&tick_label)
        .y_label_formatter(&tick_label)
        .x_desc("GPUs")
        .y_desc(measure.title())
        .draw()?;
    // More GPUs take less time and more watts.
    let corner = match measure {
        Measure::Epoch => SeriesLabelPosition::UpperRight,
        Measure::Power => SeriesLabelPosition::UpperLeft,
    };
    // Intervals may reach beyond the axes.
    let y = |value: f64| value.clamp(low, high);
    for (n, Series { name, curve, points }) in series.iter().enumerate() {
        let of = |which: usize| curve.iter().map(move |(gpus, at)| (f64::from(*gpus), at[which]));
        let band: Vec<(f64, f64)> =
            of(1).chain(of(2).collect::<Vec<_>>().into_iter().rev()).map(|(x, at)| (x, y(at))).collect();
        if band.len() > 2 {
            chart.draw_series([Polygon::new(band, colour(n).mix(0.13))])?;
        }
        let line = of(0).map(|(x, at)| (x, y(at)));
        chart
            .draw_series(LineSeries::new(line, colour(n).stroke_width(2)))?
            .label(format!("{name} ({} measured)", points.len()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour(n).stroke_width(2)));
        let dot = |on_curve: bool| {
            let style = if on_curve { colour(n).filled() } else { colour(n).stroke_width(2) };
            let points = points.iter().filter(move |point| point.on_curve == on_curve);
            points.map(move |point| Circle::new((f64::from(point.gpus), y(point.value)), 4, style))
        };
        chart.draw_series(dot(true))?;
        chart.draw_series(dot(false))?;
    }
    chart
        .configure_series_labels()
        .position(corner)
        .label_font(text_style(13))
        .border_style(GRID.mix(0.0))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::super::Point;
    use super::super::tests::series;
    use super::*;

    #[test]
    fn every_number_of_a_picture_is_one_and_names_cannot_break_it() {
        let chart = |measure| Chart { measure, series: vec![series(); 9] };
        let drawn = svg("a\u{1}b", &[chart(Measure::Epoch), chart(Measure::Power)]);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains('\u{1}'));
        assert!(drawn.contains("seconds per epoch") && drawn.contains("watts of all GPUs"));
        assert_eq!(drawn.matches("<circle").count(), 2 * 9 * 2);
    }

    #[test]
    fn every_measurement_and_every_type_is_drawn() {
        let other = Point { gpus: 4, value: 30.0, on_curve: false };
        let mut one = series();
        one.points.push(other);
        let two = Series { name: "B".into(), ..series() };
        let drawn = svg("bert", &[Chart { measure: Measure::Epoch, series: vec![one, two] }]);
        assert_eq!(drawn.matches("<circle").count(), 5, "{drawn}");
        assert!(drawn.contains("B (2 measured)") && drawn.contains("seconds per epoch"), "{drawn}");
        assert!(drawn.contains("<polygon") && drawn.contains("currentColor"), "{drawn}");
    }
}
