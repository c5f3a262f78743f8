// Whether the texts that choose streams and ranks are well-formed. The logs library reads them.
#pragma once

#include <string_view>

namespace muster::launch {

// "0" to "3" for all workers, or a list such as "0-3:1,10:3": local ranks and ranges of them.
bool is_stream_text(std::string_view text);

// "0,3,8-11". Nothing at all is well-formed, too: it stands for all ranks.
bool is_rank_text(std::string_view text);

}  // namespace muster::launch
