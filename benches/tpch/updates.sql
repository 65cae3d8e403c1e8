UPDATE lineitem SET l_quantity = l_quantity + 1, l_extendedprice = l_extendedprice + 1 WHERE l_orderkey % 10 = 3;
UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey % 10 = 3;
