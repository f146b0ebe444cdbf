// SPDX-License-Identifier: Apache-2.0
//! Results as a picture: for each work a group of bars, one for each contestant, as long as its share of the direct rate.
//! Plain SVG without scripts, styles or fonts of its own; it holds on light and dark pages.

use std::fmt::Write as _;

use super::results::{DIRECT, Results};

const LEFT: f64 = 300.0;
const WIDTH: f64 = 520.0;
const BAR: f64 = 11.0;
const GAP: f64 = 10.0;
const TOP: f64 = 64.0;
/// Told apart by those who see few colours as well.
const COLOURS: [&str; 6] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
];

/// The picture.
pub fn svg(results: &Results) -> String {
    let others: Vec<_> = results
        .contestants
        .iter()
        .filter(|one| one.name != DIRECT)
        .collect();
    let (mut bars, mut y, mut most) = (String::new(), TOP, 1.0f64);
    let groups: Vec<_> = results
        .works()
        .map(|work| {
            let cells = others
                .iter()
                .enumerate()
                .filter_map(|(index, one)| results.cell(work, &one.name).map(|cell| (index, cell)));
            (work, cells.collect::<Vec<_>>())
        })
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    for (_, cells) in &groups {
        most = cells
            .iter()
            .fold(most, |most, (_, cell)| most.max(cell.ratio));
    }
    let scale = WIDTH / most;
    for (work, cells) in &groups {
        let middle = y + cells.len() as f64 * BAR / 2.0 + 4.0;
        let _ = writeln!(
            bars,
            r##"<text x="{}" y="{middle:.1}" text-anchor="end">{}</text>"##,
            LEFT - 8.0,
            escape(work.title)
        );
        for (index, cell) in cells {
            let (width, colour) = (cell.ratio * scale, COLOURS[index % COLOURS.len()]);
            let _ = writeln!(
                bars,
                r##"<rect x="{LEFT}" y="{y:.1}" width="{width:.1}" height="{}" fill="{colour}"/><text x="{:.1}" y="{:.1}" font-size="9">{:.2}</text>"##,
                BAR - 1.0,
                LEFT + width + 4.0,
                y + BAR - 2.5,
                cell.ratio
            );
            y += BAR;
        }
        y += GAP;
    }
    let height = y + 24.0;
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0} {height:.0}" font-family="sans-serif" font-size="12" fill="#808080">
<title>Rate of each contestant over that of no proxy at all</title>
<text x="{LEFT}" y="18" font-size="14">rate, as a share of the rate without any proxy</text>
"##,
        LEFT + WIDTH + 50.0
    );
    let mut x = LEFT;
    for (index, one) in others.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(
            text,
            r##"<rect x="{x:.0}" y="30" width="10" height="10" fill="{colour}"/><text x="{:.0}" y="39">{}</text>"##,
            x + 14.0,
            escape(&one.name)
        );
        x += 34.0 + 7.0 * one.name.chars().count() as f64;
    }
    for step in 0..=(most * 4.0).floor() as u32 {
        let share = f64::from(step) / 4.0;
        let x = LEFT + share * scale;
        let _ = writeln!(
            text,
            r##"<line x1="{x:.1}" y1="{}" x2="{x:.1}" y2="{:.1}" stroke="#808080" stroke-opacity="0.35"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{share}</text>"##,
            TOP - 6.0,
            y - GAP + 4.0,
            y + 10.0
        );
    }
    text.push_str(&bars);
    text.push_str("</svg>\n");
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{results, sample};
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let samples = vec![
            sample("ping-1", DIRECT, 0, 100.0),
            sample("ping-1", "culvert", 0, 50.0),
        ];
        let text = svg(&results(samples));
        assert!(text.contains(r##"width="260.0""##), "{text}");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert_eq!(text.matches("<rect").count(), 2, "its bar and its key");
    }

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(escape("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
