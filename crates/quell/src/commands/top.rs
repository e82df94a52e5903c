//! `quell top`: status or matrix, redrawn once a second.

use super::{InputError, matrix, status};
use crate::cli;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{self, Clear, ClearType};
use crossterm::{cursor, execute, queue};
use quell_agent::client::Client;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

/// The time between two drawings.
const EVERY: Duration = Duration::from_secs(1);

/// The terminal as a full screen without echo; dropping this restores the terminal.
struct Screen;

impl Screen {
    fn take() -> anyhow::Result<Screen> {
        terminal::enable_raw_mode()?;
        // From here on, dropping `screen` restores the terminal.
        let screen = Screen;
        execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn draw(&self, text: &str) -> anyhow::Result<()> {
        let (columns, rows) = size_or_usual(terminal::size()?);
        let mut out = stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for line in text.lines().take(usize::from(rows)) {
            let line: String = line.chars().take(usize::from(columns)).collect();
            queue!(
                out,
                Print(line),
                Clear(ClearType::UntilNewLine),
                cursor::MoveToNextLine(1)
            )?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()?;
        Ok(())
    }
}

/// The size of a terminal, in columns and rows. A serial line tells 0 where nobody has set its size: then 80
/// by 24.
fn size_or_usual((columns, rows): (u16, u16)) -> (u16, u16) {
    let or = |size, usual| if size == 0 { usual } else { size };
    (or(columns, 80), or(rows, 24))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone, nothing can be restored.
        let _ = execute!(stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Redraws until the user quits.
///
/// # Errors
/// Where stdout is no terminal, the agent does not answer at the start, or the terminal fails.
pub fn top(args: &cli::Top) -> anyhow::Result<()> {
    if !stdout().is_terminal() {
        let message = "top needs a terminal; `quell status` writes the same once";
        return Err(InputError(message.to_string()).into());
    }
    let client = Client::new(&args.socket.socket);
    // Fails before the screen is taken where no agent runs.
    client.status_over(args.window.window)?;
    let screen = Screen::take()?;
    let mut show_matrix = false;
    loop {
        let text = match show_matrix {
            true => client
                .matrix(args.window.window)
                .map(|m| matrix::render(&m, matrix::MOST_COLUMNS)),
            false => client
                .status_over(args.window.window)
                .map(|s| status::render(&s)),
        };
        // An agent that is being restarted comes back.
        let text = text.unwrap_or_else(|e| format!("{e}\n\nwaiting for it"));
        screen.draw(&format!(
            "{text}\n\nq quits, m switches between tenants and who made whom wait"
        ))?;
        let next = Instant::now() + EVERY;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    KeyCode::Char('m') => {
                        show_matrix = !show_matrix;
                        break;
                    }
                    _ => {}
                },
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size_or_usual;

    #[test]
    fn a_terminal_without_a_size_has_the_usual_one() {
        assert_eq!(size_or_usual((0, 0)), (80, 24));
        assert_eq!(size_or_usual((132, 0)), (132, 24));
        assert_eq!(size_or_usual((200, 50)), (200, 50));
    }
}
