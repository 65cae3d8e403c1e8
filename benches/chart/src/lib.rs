//! Charts as SVG: lines over time or over another variable.

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
