//! Charts as SVG: lines over time or over another variable, and bars of ratios.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
pub use plotters::style::{GREEN, RED, RGBColor as Colour};

pub const BLUE: RGBColor = RGBColor(31, 119, 180);
pub const ORANGE: RGBColor = RGBColor(255, 127, 14);
pub const GRAY: RGBColor = RGBColor(120, 120, 120);

/// A line of a chart; its points are sorted from left to right.
pub struct Line<'a> {
    pub label: &'a str,
    pub colour: RGBColor,
    pub points: Vec<(f64, f64)>,
}

/// Draws the lines over seconds into a file, with a legend if there are several.
pub fn draw(path: &Path, title: &str, lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    draw_over("seconds", path, title, lines)
}

/// Draws the lines over `x` into a file.
pub fn draw_over(x: &str, path: &Path, title: &str, lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (900, 320)).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| &line.points);
    let top = points().map(|(_, value)| *value).fold(1e-3, f64::max) * 1.1;
    let end = points().map(|(at, _)| *at).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().x_desc(x).light_line_style(TRANSPARENT).draw()?;
    for Line { label, colour, points } in lines {
        let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), colour))?;
        let colour = *colour;
        drawn.label(*label).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    if lines.len() > 1 {
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GRAY).draw()?;
    }
    root.present()?;
    Ok(())
}

/// Ratio of a workload, for a chart of bars.
pub struct Ratio {
    pub label: String,
    pub value: f64,
}

/// Side of 1 on which ratios are drawn as better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Above1,
    Below1,
}

const BAR: i32 = 18;
const TOP: i32 = 40;
const LABELS: i32 = 430;
const WIDTH: i32 = 900;

/// Draws a bar for each ratio into a file, with a line at 1: blue bars are better or level, orange ones worse.
pub fn draw_ratios(path: &Path, title: &str, better: Better, ratios: &[Ratio]) -> Result<(), Box<dyn Error>> {
    let height = TOP + BAR * i32::try_from(ratios.len())? + 10;
    let root = SVGBackend::new(path, (WIDTH.cast_unsigned(), height.cast_unsigned())).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title.to_owned(), (10, 12), ("sans-serif", 18)))?;
    let most = ratios.iter().map(|ratio| ratio.value).fold(1.0, f64::max);
    let x = |value: f64| LABELS + (value / most * f64::from(WIDTH - LABELS - 60)) as i32;
    for (ratio, top) in ratios.iter().zip((TOP..).step_by(BAR as usize)) {
        let worse = match better {
            Better::Above1 => ratio.value < 0.995,
            Better::Below1 => ratio.value > 1.005,
        };
        let colour = if worse { ORANGE } else { BLUE };
        let bar = [(LABELS, top + 3), (x(ratio.value), top + BAR - 3)];
        root.draw(&Rectangle::new(bar, colour.filled()))?;
        root.draw(&Text::new(ratio.label.clone(), (10, top + 3), ("sans-serif", 13)))?;
        let value = format!("{:.2}", ratio.value);
        root.draw(&Text::new(value, (x(ratio.value) + 5, top + 3), ("sans-serif", 13)))?;
    }
    root.draw(&PathElement::new([(x(1.0), TOP - 4), (x(1.0), height - 6)], GRAY))?;
    root.present()?;
    Ok(())
}
