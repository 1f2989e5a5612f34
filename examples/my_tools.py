"""Three tools of a restaurant that answers its phone.

voice-tool-bridge tools examples/my_tools.py
voice-tool-bridge converse --tools examples/my_tools.py --wav caller.wav --out agent.wav
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from bridge import CallContext, ToolError, Toolset

tools = Toolset()

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@tools.tool(effect="read")
def opening_hours(day: Annotated[Day, "The day in question."]) -> dict[str, str]:
    """When the restaurant is open on a day of the week."""
    if day == "monday":
        return {"day": day, "open": "closed all day"}
    return {"day": day, "open": "from noon until ten in the evening"}


# Asked for again within five minutes, say after the caller has cut in, the first booking is the answer.
@tools.tool(timeout=8, dedupe=300, filler="One moment, I am looking at the book.")
async def book_table(
    day: Annotated[Day, "The day of the visit."],
    hour: Annotated[int, Field(ge=12, le=21, description="The hour of arrival, 12 to 21.")],
    guests: Annotated[int, Field(ge=1, description="How many people will come.")] = 2,
) -> dict[str, str]:
    """Book a table, after the caller has agreed to day and hour."""
    if guests > 8:
        raise ToolError("tables for more than eight are booked by email")
    await asyncio.sleep(1.5)  # the book is slow
    return {"booked": f"{day} at {hour}, for {guests}"}


@tools.tool(effect="terminal")
async def end_call(call: CallContext) -> str:
    """End the call, once everything has been said and the caller has said goodbye."""
    call.end_session("the caller said goodbye")
    return "ended"
