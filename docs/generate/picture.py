"""Draw what travels: the server, three clients with networks of their own, and the two messages."""

from __future__ import annotations

from html import escape

from generate.payloads import Message, messages

WIDTH, HEIGHT = 720, 250
INK, SOFT, DOWN, UP = "#263238", "#78909c", "#00796b", "#c2185b"


def picture(name: str) -> str:
    """The drawing of a method, as SVG; the same bytes for the same code."""
    from potluck.methods import method_class

    down, up = messages(name)
    cls = method_class(name)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(cls.__name__)}: what travels between server and clients</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        _box(20, 20, 150, 56, "server"),
        *_clients(),
        _arrow(60, 82, 60, 160, DOWN),
        _arrow(130, 160, 130, 82, UP),
        _lines(190, 34, "down, to each client:", down, DOWN),
        _lines(190, 140, "up, from each client:", up, UP),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(x: int, y: int, width: int, height: int, title: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#eceff1" stroke="{SOFT}"/>'
        f'<text x="{x + width / 2:g}" y="{y + 33}" text-anchor="middle" font-weight="bold" fill="{INK}">{escape(title)}</text>'
    )


def _clients() -> list[str]:
    """Three clients: a deep, a wide and a small network."""
    parts = []
    for place, layers in enumerate(((34, 28, 22, 16), (38, 34), (20, 14))):
        x = 20 + 52 * place
        parts.append(f'<rect x="{x}" y="166" width="46" height="58" rx="4" fill="#fafafa" stroke="{SOFT}"/>')
        for row, width in enumerate(layers):
            parts.append(
                f'<rect x="{x + 23 - width / 2:g}" y="{172 + 12 * row}" width="{width}" height="8" rx="2" fill="{SOFT}"/>'
            )
    parts.append(
        f'<text x="97" y="241" text-anchor="middle" fill="{SOFT}">clients, each with its own data</text>'
    )
    return parts


def _arrow(x: int, y: int, to_x: int, to_y: int, colour: str) -> str:
    back = 8 if to_y > y else -8
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y - back}" stroke="{colour}" stroke-width="3"/>'
        f'<path d="M{to_x - 6} {to_y - back} L{to_x + 6} {to_y - back} L{to_x} {to_y} Z" fill="{colour}"/>'
    )


def _lines(x: int, y: int, title: str, message: Message, colour: str) -> str:
    head = f"{title} {message.name}" if message.fields else f"{title} nothing"
    parts = [f'<text x="{x}" y="{y}" font-weight="bold" fill="{colour}">{escape(head)}</text>']
    for row, (name, kind) in enumerate(message.fields, 1):
        parts.append(
            f'<text x="{x + 12}" y="{y + 19 * row}" fill="{INK}">{escape(name)}: {escape(kind)}</text>'
        )
    return "\n".join(parts)
